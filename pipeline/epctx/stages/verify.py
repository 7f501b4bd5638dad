"""Stage 6, verify: a group folder under the policies, in a fixed order (design section 7).

Integrity comes first: nothing whose bytes are not those that were built is loaded. Then come
conformance and compatibility, which need no run, then numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from epctx.verification.claims import Claims
from epctx.verification.compatibility import Compatibility
from epctx.verification.conformance.check import Conformance
from epctx.verification.device import OnDevice
from epctx.verification.eps import Providers
from epctx.verification.findings import Finding, FolderReport, OutputNumbers
from epctx.verification.folder import Policy, open_folder
from epctx.verification.integrity import Integrity
from epctx.verification.numbers.composed import ComposedNumbers
from epctx.verification.numbers.golden import GoldenNumbers
from epctx.verification.numbers.policy import Numbers
from epctx.verification.numbers.runs import Pause, Started, unheard
from epctx.verification.request import VerifyRequest

Pausing = Callable[[Pause, Callable[[], FolderReport]], None]
"""Hears of each pause before a run, and can ask for what holds if it is the last moment."""


def unpaused(pause: Pause, report: Callable[[], FolderReport]) -> None:
    """Nobody ends what is run."""


def run(
    request: VerifyRequest, started: Started = unheard, pausing: Pausing = unpaused
) -> FolderReport:
    """Verify one folder. What is wrong with it is a finding, whatever the bytes in it.

    Args:
        started: hears, before it happens, which model native code is given.

    Raises:
        ModelError: there is no such folder; input files of the manifest cannot be read; a source
            does not run.
        ManifestError: the manifest's input files or ranges do not fit its models.
    """
    group, composed = request.group, request.composed
    providers = Providers()
    if group is not None:
        providers = Providers.of_group(group.execution_providers)
    elif composed is not None:
        providers = Providers.of_group(composed.providers)
    folder = open_folder(
        request.folder,
        providers=providers,
        group=group,
        models=request.models,
        data=request.data,
    )
    all_found: list[Finding | OutputNumbers] = []

    def report(rest: Iterable[Finding | OutputNumbers] = ()) -> FolderReport:
        every = [*all_found, *rest]
        found = FolderReport(
            folder=request.label,
            models=tuple(m.file for m in folder.models) + tuple(f for f, _ in folder.unreadable),
            findings=tuple(f for f in every if isinstance(f, Finding)),
            numbers=tuple(f for f in every if isinstance(f, OutputNumbers)),
        )
        return found.with_required(request.required)

    def paused(pause: Pause) -> None:
        pausing(pause, lambda: report(pause.rest))

    for policy in _policies(request, started, paused):
        earlier = (*request.earlier, *(f for f in all_found if isinstance(f, Finding)))
        for found in policy.check(folder, earlier):
            all_found.append(found)
    return report()


def _policies(
    request: VerifyRequest, started: Started, pausing: Callable[[Pause], None]
) -> list[Policy]:
    golden: tuple[Policy, ...] = ()
    if request.golden:
        golden += (GoldenNumbers(started=started, pausing=pausing),)
    if request.device is not None:
        golden += (OnDevice(results=request.device),)
    if golden and request.group is None and request.composed is None:
        numbers: tuple[Policy, ...] = golden  # nothing else can be compared with
    elif request.composed is None:
        passed = frozenset(request.passed)
        own = Numbers(
            recorded=request.recorded,
            computed=request.computed,
            passed=passed,
            spent=request.spent,
            started=started,
            pausing=pausing,
        )
        numbers = (own, *golden)
    else:
        numbers = (
            ComposedNumbers(composed=request.composed, started=started, pausing=pausing),
            *golden,
        )
    known: tuple[Policy, ...] = (
        Integrity(
            expected=request.expected,
            golden=request.golden_expected,
            passed=frozenset(request.passed),
            written=request.written,
        ),
        Conformance(),
        Claims(claims=request.claims),
        Compatibility(),
        *numbers,
    )
    return [policy for policy in known if policy.name in request.policies]
