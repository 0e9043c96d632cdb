"""Readers that build a machine: from files, from tools' output, and from the running system."""
