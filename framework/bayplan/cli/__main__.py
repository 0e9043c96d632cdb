"""``python -m bayplan.cli``: the command without its entry point."""

from bayplan.cli import main

main()
