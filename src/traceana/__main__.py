"""``python -m traceana``: the command where its script is not on the path."""

from traceana.cli.main import main

main()
