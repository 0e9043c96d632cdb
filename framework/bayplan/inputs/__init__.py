"""Untrusted text: checked against limits before it is parsed, and parsed in linear time."""
