"""``bayplan multikueue``: jobs of one cluster run in others, as Kueue's MultiKueue has it."""
