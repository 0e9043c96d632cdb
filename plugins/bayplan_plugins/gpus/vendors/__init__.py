"""Vendor adapters: how each system asks for GPUs and shares of them, and records what it gave."""
