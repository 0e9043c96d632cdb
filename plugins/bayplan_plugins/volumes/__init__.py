"""What the plugins for volumes share."""
