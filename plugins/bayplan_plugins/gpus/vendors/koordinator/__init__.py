"""Koordinator's DeviceShare: GPUs, NICs and FPGAs of Device objects, shared and taken together."""
