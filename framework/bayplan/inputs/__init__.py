"""Text that people and clusters write: measured before it is parsed, and parsed in linear time."""
