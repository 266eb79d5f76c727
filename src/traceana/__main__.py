"""``python -m traceana`` runs the command line without the installed script."""

from traceana.cli.main import main

main()
