"""What a plugin is made of, and the contract between it and the framework."""
