"""The entry point of the ``traceana`` script and of ``python -m traceana``."""

from __future__ import annotations


def main() -> None:
    """Run the command line; an interrupt ends it with one line, also during imports."""
    try:
        from traceana.cli import interrupt

        interrupt.install()
        from traceana.cli.main import main as run

        run()
    except KeyboardInterrupt:
        from traceana.cli import interrupt

        interrupt.end()
    except BaseException:
        from traceana.cli import interrupt

        # Typer makes an exit of it, libraries an ImportError.
        if interrupt.seen():
            interrupt.end()
        raise


if __name__ == "__main__":
    main()
