"""Options of a build and of a release."""

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


class ReleaseOptions(Struct, frozen=True, kw_only=True):
    """Files to make beside the groups' outputs.

    Attributes:
        golden: write golden inputs and expected outputs into each group's folder.
        archive: write `dist/<name>.tar` with all published files.
        attest: write `dist/<name>.intoto.json`.
        packaged: write the attestation after the package that follows the build.
        signer: signs the published files, in `dist/<name>/model.sig`; None for no signature.
        builder: URI of the builder, for the attestation; None to take it from the CI system.
    """

    golden: bool = False
    archive: bool = False
    attest: bool = False
    packaged: bool = False
    signer: Signer | None = None
    builder: str | None = None

    @property
    def requested(self) -> bool:
        """Tell whether any release file is requested."""
        return self.golden or self.archive or self.attest or self.signer is not None

    def refuse(self, plan: Plan) -> None:
        """Refuse release options that contradict the plan or each other.

        Raises:
            UsageError: the plan leaves out a part of the manifest; the builder is not a URI or has
                no attestation; the package that makes attestations is not installed.
        """
        if self.requested and not plan.whole:
            raise UsageError(
                "a release needs the whole manifest, but --only leaves out a part of it",
                remedy="leave out --only, or --golden, --archive, --attest and --sign",
            )
        if self.attest:
            attestation.require()
        if self.builder is not None and not self.attest:
            raise UsageError(
                "--builder-id names the builder in an attestation, but none is requested",
                remedy="add --attest, or leave out --builder-id",
            )
        if self.builder is not None and not _URI.fullmatch(self.builder):
            raise UsageError(
                f"the builder {self.builder!r} is not a URI",
                remedy="name the builder by a URI, like https://ci.example.com/builders/release",
            )


class BuildOptions(Struct, frozen=True, kw_only=True):
    """Options of a build.

    Attributes:
        out: the `dist` folder.
        jobs: number of session groups built at the same time; 0 for one for each core.
        keep_going: when a group fails, build and publish the others; otherwise publish nothing.
        numbers: run every model and compare its outputs, except where the manifest says `off`.
        requires: enforce `verify.require` of the manifest.
        locked: require the results of the lock, and never write the lock.
        from_cache: build nothing; publish results from the cache, and fail if one is missing.
        reports: with `from_cache`, a folder with the build reports of other hosts; None to take
            the EPs from the lock, or from this host without a lock.
        recalibrate: measure the ranges of quantized models again.
        variables: environment variables of the workers, besides the fixed ones.
        release: release files to make after a build that succeeded as a whole.
        expect: receives the groups that are going to be built.
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
    release: ReleaseOptions = field(default_factory=ReleaseOptions)
    expect: Expect = lambda groups: None
