"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epctx.cli import completion
from epctx.cli.paths import Existing, Written

STARTER = Existing(otherwise="check the path, or write a starter manifest with `epctx init`")
Manifest = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest."), STARTER]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GROUP[@TARGET]",
        help="Build this group only; may be repeated.",
        autocompletion=completion.groups,
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", "-j", min=0, metavar="N", help="Session groups at a time; 0: one a core."
    ),
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not run the models to compare numbers.")
]
Locked = Annotated[
    bool, typer.Option("--locked", help="Fail if anything would differ from the lock; write none.")
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Run everything, whatever was done before; keep nothing.")
]
Sarif = Annotated[
    Path | None,
    typer.Option("--sarif", metavar="FILE", help="Write what is wrong as SARIF 2.1.0, too."),
    Written(),
]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Let paths lead out of the manifest's folder.")
]
