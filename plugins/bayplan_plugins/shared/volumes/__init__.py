"""Which volumes pods use, and where they can be reached."""
