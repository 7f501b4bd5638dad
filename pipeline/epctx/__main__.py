"""`python -m epctx`, and the entry point `epctx`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. An interrupt while it is imported is no traceback, but exit code 130:
    nothing is imported before.
    """
    try:
        from epctx.cli.app import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("error[E1300]: interrupted\n  -> run the command again; nothing is lost\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
