"""What `epctx package` did."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctx.engine.report import BuildReport
from epctx.text import Brief


class PackagedVariant(Struct, frozen=True, kw_only=True):
    """A variant of a component.

    Attributes:
        ep: ONNX Runtime's name of the EP that it is selected for.
        device: cpu, gpu or npu; None: whatever the EP has.
        folder: in the package; several variants may have one.
        compatibility: what the EP is asked about it; None: nothing.
        native: ONNX Runtime has that EP; else only `epctx.runtime` runs the variant.
    """

    component: str
    variant: str
    ep: str
    device: str | None
    folder: str
    compatibility: str | None
    native: bool


class PackageReport(Brief, frozen=True, kw_only=True):
    """A model package.

    Attributes:
        path: its folder, relative to the output folder.
        state: written, or up to date: the same was there.
        files: how many files it has.
        size: of all of them, in bytes.
        saved: bytes that would be stored again if variants shared nothing.
        oci: the digest of the manifest that `epctx push` makes of it, `sha256:…`.
        variants: by component, in the order in which ONNX Runtime tries them.
        signer: who signed it, in `model.sig`; None: nobody was asked to.
        build: the build that it holds.
        left_out: compositions of the build, `<target>/<name>`, which no package holds.
    """

    path: str
    state: Literal["written", "up to date"]
    files: int
    size: int
    saved: int
    oci: str
    variants: tuple[PackagedVariant, ...]
    signer: str | None = None
    build: BuildReport
    left_out: tuple[str, ...] = ()
