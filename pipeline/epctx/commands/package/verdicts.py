"""Findings about a package's manifest: its version, and what no reader would ever select."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from epctx.commands.package import form
from epctx.commands.package.form import MANIFEST, Package, Variant
from epctx.manifest import DEFAULT_EP
from epctx.verification.findings import Finding

REBUILD: Final = "run `epctx package` again, or ask whoever made it to"
_finding: Final = partial(Finding, "conformance")
_VERSION: Final = re.compile(r"(\d+)(?:\.(\d+))?")


def other_version(package: Package) -> Finding | None:
    """A format that is not known here; None: it is."""
    match = _VERSION.fullmatch(str(package.schema_version))
    if match is None or match[1] != "1":
        message = f"is of schema version {package.schema_version}: ONNX Runtime 1.31 reads 1"
        return fail("manifest", MANIFEST, message, REBUILD)
    if match[2] not in (None, "0"):
        message = f"is of schema version {package.schema_version}, which is newer than 1.0"
        return unknown(MANIFEST, message, "verify it with a newer epctx")
    return None


def selectable(subject: str, variant: Variant) -> Iterator[Finding]:
    """What keeps ONNX Runtime 1.31.1 from ever selecting a variant, without a word."""
    ep = variant.ep or ""
    if not ep.endswith("ExecutionProvider"):
        said = f"the EP {ep!r}, which is no whole name" if ep else "no EP"
        message = f"has {said}: ONNX Runtime never selects it"
        remedy = 'write ONNX Runtime\'s name of the EP, like "QNNExecutionProvider"'
        yield fail("selectable", subject, message, remedy)
    if ep == DEFAULT_EP and variant.device is not None:
        message = f"names a device: ONNX Runtime 1.31 selects no variant of {DEFAULT_EP} then"
        yield fail("selectable", subject, message, "remove `device`")
    if variant.device is not None and variant.device.lower() not in form.DEVICES:
        message = f"is for the device {variant.device!r}, which ONNX Runtime does not know"
        remedy = f"write one of {', '.join(form.DEVICES)}, or nothing"
        yield fail("selectable", subject, message, remedy)


def fail(check: str, subject: str, message: str, remedy: str) -> Finding:
    """What is wrong."""
    return _finding(check, subject, "fail", message, remedy)


def passed(check: str, subject: str, message: str) -> Finding:
    """What conforms."""
    return _finding(check, subject, "pass", message)


def unknown(subject: str, message: str, remedy: str) -> Finding:
    """What cannot be checked, or is of no use."""
    return _finding("manifest", subject, "not checkable", message, remedy)
