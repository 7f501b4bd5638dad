"""`epctx validate`: faults of a manifest and of the models that it names."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from epctx.commands.validate import finding
from epctx.commands.validate.finding import Finding
from epctx.errors import InvalidManifest, ManifestError, Violation
from epctx.parsing import buckets, document, load
from epctx.parsing.document import Document
from epctx.parsing.document.tree import violations
from epctx.parsing.rules.check import doubts


class Validation(Struct, frozen=True, kw_only=True):
    """Findings of one manifest, in the file's order.

    Attributes:
        manifest: as the user named it.
        violations: for which a build fails.
        warnings: which a build takes, and nobody may have meant.
        exit_code: what a build would end with by the first violation; 0 without one.
    """

    manifest: Path
    violations: tuple[Violation, ...] = ()
    warnings: tuple[Violation, ...] = ()
    exit_code: int = 0


def validate(path: Path, *, models: bool = True, allow_outside: bool = False) -> Validation:
    """Check a manifest; where it breaks neither schema nor rules, its models and EPs, too.

    Args:
        path: the manifest.
        models: read the headers of its models; no weight is read and no EP is run. False: they and
            other files that it names may be missing.
        allow_outside: its paths may lead out of its folder.

    Raises:
        ManifestError: it cannot be read.
        ProviderUnavailable: an installed provider's option schema cannot be used.
    """
    try:
        read = document.read(path)
        broken = load.violations(read, allow_outside=allow_outside, partial=not models)
    except InvalidManifest as error:
        broken = error.violations
    if broken:
        return Validation(manifest=path, violations=broken, exit_code=ManifestError.exit_code)
    return _told(path, read, _findings(read, models=models))


def _findings(read: Document, *, models: bool) -> list[Finding]:

    manifest, root = load.parse(read), buckets.expand(read.root)
    found = [Finding(problem=problem) for problem in doubts(root)]
    found += finding.findings(root, manifest)
    if models:
        from epctx.commands.validate import models as groups

        found += groups.findings(root, manifest)
    unique = {(each.problem.path, each.problem.what): each for each in found}
    return sorted(
        unique.values(), key=lambda each: (each.problem.mark.line, each.problem.mark.column)
    )


def _told(path: Path, read: Document, found: list[Finding]) -> Validation:
    errors = [each for each in found if each.exit_code]
    warnings = [each.problem for each in found if not each.exit_code]
    return Validation(
        manifest=path,
        violations=tuple(violations((each.problem for each in errors), file=read.file)),
        warnings=tuple(violations(warnings, file=read.file)),
        exit_code=errors[0].exit_code if errors else 0,
    )
