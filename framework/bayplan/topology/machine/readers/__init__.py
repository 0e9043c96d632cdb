"""Where the layout of a machine comes from: files, tools, the system itself."""
