"""`python -m epctx`."""

from epctx.cli import main

main()
