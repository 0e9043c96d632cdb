"""Which volumes a pod uses, and where they can be reached."""
