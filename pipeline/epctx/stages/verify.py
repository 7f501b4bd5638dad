"""Stage 6, verify: a group folder under the policies, in a fixed order (design section 7).

Integrity comes first: a file with other bytes than the built ones is never loaded. Then come
conformance and compatibility, which need no run, then numbers.
"""

from __future__ import annotations

from epctx.verification.compatibility import Claims, Compatibility
from epctx.verification.conformance import Conformance
from epctx.verification.device import OnDevice
from epctx.verification.findings import Finding, FolderReport, OutputNumbers
from epctx.verification.folder import GroupFolder, Policy, Providers, open_folder
from epctx.verification.integrity import Integrity
from epctx.verification.numbers.composed import ComposedNumbers
from epctx.verification.numbers.golden import GoldenNumbers
from epctx.verification.numbers.policy import Numbers
from epctx.verification.request import VerifyRequest


def opened(request: VerifyRequest) -> GroupFolder:
    """Read the models of a folder without weights. Raises ModelError if there is no such folder."""
    group, composed = request.group, request.composed
    providers = Providers()
    if group is not None:
        providers = Providers.of_group(group.execution_providers)
    elif composed is not None:
        providers = Providers.of_group(composed.providers)
    return open_folder(
        request.folder,
        providers=providers,
        group=group,
        models=request.models,
        data=request.data,
    )


def run(request: VerifyRequest) -> FolderReport:
    """Verify one folder; no model is run. Any fault of the folder is a finding, whatever bytes it
    has.

    Raises:
        ModelError: there is no such folder; input files of the manifest cannot be read.
        ManifestError: the manifest's input files or ranges do not fit its models.
        StorageError: kept outputs cannot be read.
    """
    folder = opened(request)
    results: list[Finding | OutputNumbers] = []
    for policy in _policies(request):
        earlier = (*request.earlier, *(f for f in results if isinstance(f, Finding)))
        for result in policy.check(folder, earlier):
            results.append(result)
    report = FolderReport(
        folder=request.label,
        models=tuple(m.file for m in folder.models) + tuple(f for f, _ in folder.unreadable),
        findings=tuple(f for f in results if isinstance(f, Finding)),
        numbers=tuple(f for f in results if isinstance(f, OutputNumbers)),
    )
    return report.with_required(request.required)


def _policies(request: VerifyRequest) -> list[Policy]:
    kept, passed = request.kept, frozenset(request.passed)
    golden: tuple[Policy, ...] = ()
    if request.golden:
        golden += (GoldenNumbers(kept=kept),)
    if request.device is not None:
        golden += (OnDevice(results=request.device),)
    if golden and request.group is None and request.composed is None:
        numbers: tuple[Policy, ...] = golden  # there is nothing else to compare with
    elif request.composed is None:
        numbers = (Numbers(kept=kept, passed=passed), *golden)
    else:
        numbers = (ComposedNumbers(composed=request.composed, kept=kept), *golden)
    policies: tuple[Policy, ...] = (
        Integrity(
            expected=request.expected,
            golden=request.golden_expected,
            passed=passed,
            written=request.written,
        ),
        Conformance(),
        Claims(claims=request.claims),
        Compatibility(),
        *numbers,
    )
    return [policy for policy in policies if policy.name in request.policies]
