"""Watch events in, cycles, bindings and status writes out."""
