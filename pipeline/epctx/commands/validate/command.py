"""`epctx validate`: find faults of a manifest and of the models that it names."""

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
    """Findings for one manifest, in the file's order.

    Attributes:
        manifest: path as the user gave it.
        violations: findings that make a build fail.
        warnings: findings that a build accepts, but that may be mistakes.
        exit_code: exit code of a build that fails at the first violation; 0 without violations.
    """

    manifest: Path
    violations: tuple[Violation, ...] = ()
    warnings: tuple[Violation, ...] = ()
    exit_code: int = 0


def validate(path: Path, *, models: bool = True, allow_outside: bool = False) -> Validation:
    """Check a manifest; if it follows schema and rules, also check its models and EPs.

    Args:
        path: the manifest.
        models: read the headers of its models, without weights and without running an EP. If False,
            models and other files may be missing.
        allow_outside: allow paths that lead out of the manifest's folder.

    Raises:
        ManifestError: the manifest cannot be read.
        ProviderUnavailable: an installed provider's option schema cannot be used.
    """
    try:
        parsed = document.read(path)
        broken = load.violations(parsed, allow_outside=allow_outside, partial=not models)
    except InvalidManifest as error:
        broken = error.violations
    if broken:
        return Validation(manifest=path, violations=broken, exit_code=ManifestError.exit_code)
    return _validation(path, parsed, _findings(parsed, models=models))


def _findings(parsed: Document, *, models: bool) -> list[Finding]:

    manifest, root = load.parse(parsed), buckets.expand(parsed.root)
    results = [Finding(problem=problem) for problem in doubts(root)]
    results += finding.findings(root, manifest)
    if models:
        from epctx.commands.validate import models as groups

        results += groups.findings(root, manifest)
    unique = {(each.problem.path, each.problem.what): each for each in results}
    return sorted(
        unique.values(), key=lambda each: (each.problem.mark.line, each.problem.mark.column)
    )


def _validation(path: Path, parsed: Document, findings: list[Finding]) -> Validation:
    errors = [each for each in findings if each.exit_code]
    warnings = [each.problem for each in findings if not each.exit_code]
    return Validation(
        manifest=path,
        violations=tuple(violations((each.problem for each in errors), file=parsed.file)),
        warnings=tuple(violations(warnings, file=parsed.file)),
        exit_code=errors[0].exit_code if errors else 0,
    )
