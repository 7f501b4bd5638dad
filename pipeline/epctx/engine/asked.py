"""What is asked of a build, and what a release is to have beside the groups' folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from epctx.engine.events import Expect
from epctx.engine.output import attestation
from epctx.engine.plan import Plan
from epctx.errors import UsageError
from epctx.signing.keys import Signer

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")


class Release(Struct, frozen=True, kw_only=True):
    """What is asked for.

    Attributes:
        golden: golden inputs and expected outputs in each group's folder.
        archive: `dist/<name>.tar` of all that was published.
        attest: `dist/<name>.intoto.json`.
        packaged: a package comes after the build, and the attestation after it.
        signer: signs what was published, in `dist/<name>/model.sig`; None: nobody.
        builder: who builds, a URI, for the attestation; None: as the CI system says.
    """

    golden: bool = False
    archive: bool = False
    attest: bool = False
    packaged: bool = False
    signer: Signer | None = None
    builder: str | None = None

    @property
    def asked(self) -> bool:
        """Anything is."""
        return self.golden or self.archive or self.attest or self.signer is not None

    def refuse(self, plan: Plan) -> None:
        """A release is of a whole manifest, and a builder is a URI.

        Raises:
            UsageError: a part of one was to be released; the builder makes no sense; the package
                that makes attestations is not installed.
        """
        if self.asked and not plan.whole:
            raise UsageError(
                "a release is of the whole manifest, and --only leaves something out",
                remedy="leave out --only, or --golden, --archive, --attest and --sign",
            )
        if self.attest:
            attestation.require()
        if self.builder is not None and not self.attest:
            raise UsageError(
                "--builder-id is of an attestation, and none is asked for",
                remedy="add --attest, or leave it out",
            )
        if self.builder is not None and not _URI.fullmatch(self.builder):
            raise UsageError(
                f"the builder {self.builder!r} is no URI",
                remedy="name who builds by a URI, like https://ci.example.com/builders/release",
            )


class Options(Struct, frozen=True, kw_only=True):
    """How a plan is carried out.

    Attributes:
        out: the `dist` folder.
        jobs: how many session groups are worked on at a time; 0: one for each core.
        keep_going: build and publish the other groups when one fails; else nothing is published.
        numbers: run every model and compare, where the manifest does not say `off`.
        requires: hold the build to `verify.require` of the manifest.
        locked: hold the build to the lock, and never write it.
        from_cache: build nothing: publish what is in the cache, and fail if something is not.
        reports: with that, a folder with the build reports of those who built; None: with a lock,
            their EPs are the lock's, else this host's.
        recalibrate: find the ranges of models that are quantized anew.
        variables: of the workers' environment, which is else the same whoever builds.
        release: what else to make of a whole successful build.
        expect: hears what is going to be built.
    """

    out: Path
    jobs: int = 0
    keep_going: bool = False
    numbers: bool = True
    requires: bool = True
    locked: bool = False
    from_cache: bool = False
    reports: Path | None = None
    recalibrate: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    release: Release = field(default_factory=Release)
    expect: Expect = lambda groups: None
