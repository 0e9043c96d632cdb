"""Where objects live and writes go: backends behind one protocol."""
