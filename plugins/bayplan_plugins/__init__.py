"""The in-tree plugins, one module each. They import only :mod:`bayplan`."""
