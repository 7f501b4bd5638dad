"""Judgement of a device's results (`device_results`), on the host of epctx.

The device's own verdict does not count. This module compares the outputs with the golden ones
again, and the digests in the results must be those of the folder's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from epctx.errors import VerificationError
from epctx.files import paths
from epctx.files.digest import of_file
from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.verification.device_results import DeviceModel, DeviceResults, read
from epctx.verification.findings import Finding, Outcome, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.numbers import golden, golden_files
from epctx.verification.numbers.golden_files import FOLDER, GoldenCase, GoldenModel, GoldenSet
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.policy import Found
from epctx.verification.numbers.tasks import broken, finding, unchecked

_AGAIN: Final = "make a new kit from this folder, and run its check_device.py on the device"
_MADE: Final = "build it with `epctx build --golden`, or name the folder that the kit was made from"
_THERE: Final = "fix it on the device, and run check_device.py again"
_device: Final = partial(Finding, "compatibility", "device", ".")


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Judge the models of a folder by the results of a device."""

    results: Path
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Judge the results of each model."""
        results = read(self.results)
        yield from _circumstances(results, folder)
        if any(f.outcome == "fail" and f.subject.startswith(f"{FOLDER}/") for f in earlier):
            return  # integrity has reported why golden files are not used
        try:
            record = golden_files.read_record(folder.path / FOLDER).models
        except VerificationError as error:
            yield Finding("numbers", "golden", FOLDER, "fail", str(error.why or error.what), _MADE)
            return
        by_model = {each.model: each for each in results.models}
        for model in folder.models:
            name = model.file.removesuffix(CONTEXT_SUFFIX)
            result = by_model.get(f"{folder.path.parent.name}/{folder.path.name}/{name}")
            if (wrong := broken(model, earlier)) is not None:
                yield unchecked(model, f"{wrong.subject} {wrong.message}", "fix that first")
            elif result is None:
                yield finding(
                    model, "device", "fail", "the results of the device do not include it", _AGAIN
                )
            elif name not in record:
                yield finding(model, "golden", "fail", "has no golden inputs", _MADE)
            else:
                yield from self._judged(folder, model, result, record[name])

    def _judged(
        self, folder: GroupFolder, model: ContextModel, result: DeviceModel, right: GoldenModel
    ) -> Iterator[Found]:
        present = [name for name in model.files if paths.missing(folder.path, name) is None]
        own = {name: of_file(folder.path / name, "sha256").hex for name in present}
        if result.files and result.files != own:
            other = sorted(dict(result.files.items() ^ own.items()))
            message = f"the device had other files: {', '.join(other)}"
            yield Finding("integrity", "device", model.file, "fail", message, _AGAIN)
            return
        for ep, verdict in result.compatibility.items():
            yield _verdict(model, ep, verdict)
        for problem in result.problems:
            yield finding(model, "device", "fail", f"on the device: {problem}", _THERE)
        if result.outputs is None or not result.files:
            if not result.problems:
                yield finding(model, "device", "fail", "the device did not run it", _AGAIN)
            return
        try:
            yield from self._numbers(folder, model, result, right)
        except VerificationError as error:
            yield finding(model, "device", "fail", str(error.why or error.what), _AGAIN)

    def _numbers(
        self, folder: GroupFolder, model: ContextModel, result: DeviceModel, right: GoldenModel
    ) -> Iterator[Found]:
        """Compare the outputs. Raises VerificationError if they cannot be read."""
        labels = [each.label for each in result.sets]
        if labels != [each.label for each in right.sets]:
            message = f"the device ran the input sets {labels}, not the golden ones"
            yield finding(model, "device", "fail", message, _AGAIN)
            return
        name = model.file.removesuffix(CONTEXT_SUFFIX)
        expected = golden_files.read(folder.path / FOLDER, name, right)
        judge = Judge(
            file=model.file,
            sessions="device",
            providers=folder.providers.of(model.sources),
            precision=right.precision,
            probabilities=frozenset(right.probabilities),
            asked=right.tolerance,
            inputs="golden",
            right="the golden outputs",
            known={each.label: each.outputs for each in expected},
        )
        for golden_case, device_case in zip(expected, self._outputs(result, right), strict=True):
            typed = golden.as_computed(golden_case.outputs, device_case.outputs)
            yield from judge.judge(golden_case.label, typed, device_case.outputs)
        yield from judge.summary()

    def _outputs(self, result: DeviceModel, right: GoldenModel) -> tuple[GoldenCase, ...]:
        """Read the outputs of the device. Raises VerificationError."""
        name = result.outputs or ""
        beside = self.results.resolve().parent
        why = None if paths.is_bare(name) else "is not beside them"
        why = why or paths.missing(beside, name)
        if why is None and of_file(beside / name, "sha256").hex != result.sha256:
            why = "is damaged: its SHA-256 is not the one in the results"
        if why is not None:
            reason = f"{name!r} with the device's outputs: {why}"
            raise VerificationError("cannot be read", why=reason, remedy=_AGAIN)
        sets = tuple(GoldenSet(label=e.label, inputs=(), outputs=e.outputs) for e in result.sets)
        return golden_files.read(beside, name.removesuffix(".npz"), replace(right, sets=sets))


def _circumstances(results: DeviceResults, folder: GroupFolder) -> Iterator[Finding]:
    """Report the driver of the device, if one is required, and its package versions."""
    used = {p.name for model in folder.models for p in folder.providers.of(model.sources)}
    driver = results.expect_driver
    devices = [device for device in results.devices if device.ep in used]
    for device in devices if driver is not None else ():
        versions = ", ".join(f"{k} {v}" for k, v in device.drivers.items()) or "unknown"
        same = driver in device.drivers.values()
        message = f"the driver of {device.ep} is {versions}"
        remedy = "" if same else "install that driver on the device, or build for this one"
        expected = "" if same else f", but it should be {driver}"
        yield _device("pass" if same else "fail", f"{message}{expected}", remedy)
    if driver is not None and used and not devices:
        yield _device("fail", f"no device reports a driver; it should be {driver}", _AGAIN)
    for package in sorted(results.packages.keys() & results.built_with.keys()):
        on_device, at_build = results.packages[package], results.built_with[package]
        message = f"the device has {package} {on_device}"
        if on_device == at_build:
            yield _device("pass", f"{message}, as the build had")
        else:
            remedy = "install that version on the device, or accept its numbers"
            yield _device("not checkable", f"{message}, the build had {at_build}", remedy)


def _verdict(model: ContextModel, ep: str, verdict: str) -> Finding:
    """Return the finding about ONNX Runtime's compatibility verdict on the device."""
    outcome: Outcome = "not checkable"
    if verdict in ("EP_SUPPORTED_OPTIMAL", "EP_SUPPORTED_PREFER_RECOMPILATION"):
        outcome = "pass"
    elif verdict == "EP_UNSUPPORTED":
        outcome = "fail"
    word = verdict.removeprefix("EP_").replace("_", " ").lower()
    shown = word if verdict.startswith("EP_") else verdict
    message = f"ONNX Runtime's verdict on the device for {ep}: {shown}"
    remedies = {
        "fail": "build it for that device",
        "not checkable": "check it on a device that it was built for",
    }
    return Finding(
        "compatibility", "device", model.file, outcome, message, remedies.get(outcome, "")
    )
