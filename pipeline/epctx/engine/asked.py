"""What a release is asked to have beside the groups' folders."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

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
