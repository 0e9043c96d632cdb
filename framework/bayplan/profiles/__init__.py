"""From a profile file to plugins that are ready to be called."""
