"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from epctx.cli import completion
from epctx.cli.paths import Existing, Written
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.machines.address import Tls
from epctx.parsing.document import recognize

STARTER = Existing(otherwise="check the path, or write a starter manifest with `epctx init`")
Manifest = Annotated[
    Path | None,
    typer.Argument(
        metavar="[MANIFEST]",
        show_default=False,
        help="The manifest; else epctx.yaml, or the only manifest in manifests/.",
    ),
    STARTER,
]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Where the outputs go, or are.")
]
NewManifest = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        show_default=False,
        help="The manifest to write; else epctx.yaml here, or in the folder nearest to the "
        "models that holds them all.",
    ),
    Written(),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GROUP[@TARGET]",
        help="Build this group only; may be repeated, or have several with commas.",
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
RemoteCache = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A cache that several machines share: s3://, gs://, az://, file:// or https://.",
    ),
]
Trust = Annotated[
    Path | None,
    typer.Option(
        "--trust",
        metavar="FILE",
        help="Public keys of those whose signatures count in the shared cache.",
    ),
    Existing(),
]
Sarif = Annotated[
    Path | None,
    typer.Option("--sarif", metavar="FILE", help="Write what is wrong as SARIF 2.1.0, too."),
    Written(),
]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Let paths lead out of the manifest's folder.")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Whose certificates other machines must show; PEM."),
    Existing(),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The certificate that is shown to them; PEM."),
    Existing(),
]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The key of that certificate; PEM."), Existing()
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Use no certificates: whoever reaches the scheduler can run code here."
    ),
]

Attest = Annotated[
    bool,
    typer.Option("--attest", help="Write an in-toto attestation with SLSA provenance, too."),
]
BuilderId = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="Who builds, for --attest; else what the CI system's variables say."
    ),
]
PlainHttp = Annotated[
    bool, typer.Option("--insecure", help="The registry speaks plain HTTP: who listens, reads all.")
]


def tls(ca: Path | None, cert: Path | None, key: Path | None, insecure: bool) -> Tls:
    """What was said of certificates."""
    return Tls(ca=ca, cert=cert, key=key, insecure=insecure)


Sign = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        metavar="PEM",
        help="Sign it with this private key by OpenSSF Model Signing, as `epctx sign` does.",
    ),
    Existing(),
]
Cert = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="The certificate of the key that signs."),
    Existing(),
]
Chain = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="The certificates of its issuers, the nearest first."),
    Existing(),
]


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """The values of a repeated option NAME=VALUE, by name.

    Raises:
        UsageError: one is not written so, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{option} {text}",
                remedy=f"write it as {option} NAME=VALUE",
                code=Code.COMMAND_LINE,
            )
        if name in found:
            raise UsageError(
                f"{option} gives {name} twice: {found[name]} and {value}",
                remedy="keep one of them",
                code=Code.COMMAND_LINE,
            )
        found[name] = value
    return found


def size(name: str, text: str, option: str = "--dimension") -> int:
    """A size in elements. Raises UsageError."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            f"{option} {name}={text}",
            why=f"{text!r} is not a size",
            remedy=f"write sizes of at least 1, as {option} {name}=1",
            code=Code.COMMAND_LINE,
        )
    return int(text)


def located(manifest: Path | None) -> Path:
    """The manifest that was named, else the one that a project has in its usual place.

    Raises:
        UsageError: none was named, and there is none, or there are several.
    """
    if manifest is not None:
        return manifest
    usual = Path("epctx.yaml")
    if usual.is_file():
        return usual
    paths = (path for pattern in ("*.yaml", "*.yml") for path in Path("manifests").glob(pattern))
    known = [path for path in sorted(paths) if recognize.is_manifest(path)]
    if len(known) == 1:
        return known[0]
    if not known:
        raise UsageError(
            "no manifest is named, and there is no epctx.yaml here, nor one in manifests/",
            remedy="name one, or write one: `epctx init MODEL.onnx`",
            code=Code.COMMAND_LINE,
        )
    names = [path.as_posix() for path in known]
    raise UsageError(
        "no manifest is named, and manifests/ has several",
        why=", ".join(names[:5]) + (", ..." if len(names) > 5 else ""),
        remedy=f"name one, such as {names[0]}",
        code=Code.COMMAND_LINE,
    )
