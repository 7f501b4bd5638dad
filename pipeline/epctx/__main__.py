"""`python -m epctx`, and the entry point `epctx`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Nothing is imported before, so that an interrupt during the imports
    ends with exit code 130 and without a traceback.
    """
    try:
        from epctx.cli.app import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("error[E1300]: interrupted\n  -> run the command again; nothing is lost\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
