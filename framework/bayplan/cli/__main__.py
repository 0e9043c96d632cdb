"""``python -m bayplan.cli``: the command without an entry point."""

from bayplan.cli import main

main()
