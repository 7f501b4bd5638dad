"""Compatibility of a model with devices, checked against the manifest, this host and the package.

Source: real-eps.md section 7. onnxruntime's Python sessions ignore `ep_compatibility_info`, so this
module checks it. ONNX Runtime selects a variant of a package by its EP and its compatibility
string. With a wrong string, it selects the model on devices where the model does not run, or on no
device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from onnxruntime.capi import _pybind_state as native

from epctx.errors import EpctxError, InvalidGraph, ProviderUnavailable
from epctx.graph.epcontext import COMPATIBILITY, EPContextNode
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import ExecutionProvider, Outcome, Verdict
from epctx.text import first_line
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.request import Claim

_REMEDIES: Final = {
    "EP_SUPPORTED_PREFER_RECOMPILATION": "build it again with this host's toolchain for full speed",
    "EP_UNSUPPORTED": "build it for this host, or verify it where it is to run",
}


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """Check the compatibility info of each EP of each model: by the EP, and by onnxruntime."""

    name: PolicyName = field(default="compatibility", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Finding]:
        """Check each model."""
        for model in folder.models:
            for source in model.sources:
                nodes = [node for node in model.nodes if (node.source or "") == source]
                provider = folder.providers.find(source)
                if provider is None:
                    why = f"no EP on this host accepts the source '{source}'"
                    yield _finding(model, "info", _unknown(why, folder.providers.why_not(source)))
                    continue
                info = model.metadata.get(COMPATIBILITY + provider.name)
                has_manifest = folder.providers.asked is not None
                for verdict in _info(provider, info, nodes):
                    yield _finding(
                        model, "info", verdict if has_manifest else _without_manifest(verdict)
                    )
                if info is not None and provider.native:
                    obstacle = _obstacle(provider, nodes, folder.path)
                    verdict = obstacle or _devices(provider, info)
                    yield _finding(model, "devices", verdict)


def _info(
    provider: ExecutionProvider, info: str | None, nodes: Sequence[EPContextNode]
) -> Sequence[Verdict]:
    try:
        verdicts = provider.check_compatibility(info, nodes)
    except EpctxError as error:
        return [Verdict(outcome="fail", message=error.reason, remedy=error.remedy)]
    if verdicts:
        return verdicts
    if info is None:
        message = f"has no {COMPATIBILITY}{provider.name}"
    else:
        message = f"{provider.name} cannot interpret '{info}'"
    remedy = "its provider needs `check_compatibility` (epctx.providers.base)"
    return [_unknown(message, remedy)]


def _without_manifest(verdict: Verdict) -> Verdict:
    """Turn a failure into "not checkable": without a manifest, the EP's options are not known."""
    return replace(verdict, outcome="not checkable") if verdict.outcome == "fail" else verdict


def _obstacle(
    provider: ExecutionProvider, nodes: Sequence[EPContextNode], folder: Path
) -> Verdict | None:
    """Return why this host cannot load the model, so that its devices prove nothing."""
    try:
        reason = provider.cannot_load(nodes, folder, sharing=False)
    except (InvalidGraph, ProviderUnavailable) as error:
        return _unknown(error.reason, error.remedy)
    return None if reason is None else _unknown(reason, "check it on the device")


def _devices(provider: ExecutionProvider, info: str) -> Verdict:
    """Return onnxruntime's verdict about the devices of this host."""
    name = provider.name
    try:
        devices = list(provider.ep_devices())
    except ProviderUnavailable as error:
        return _unknown(error.reason, error.remedy)
    if not devices:
        obstacle = provider.unavailable()
        why = f": {obstacle.what}" if obstacle is not None else ""
        return _unknown(f"this host has no device of {name}{why}", "check it on the device")
    if kinds := provider.judging_devices:
        devices = [device for device in devices if device.device.type.name in kinds]
        if not devices:
            message = f"{name} can check it only on a host with its {' or '.join(sorted(kinds))}"
            return _unknown(f"{message}; this host has none", "check it on the device")
    try:
        answer = native.get_model_compatibility_for_ep_devices(devices, info)
    except (RuntimeError, ValueError) as error:  # ValueError: an EP's message is not UTF-8
        message = f"{name} cannot check it on this host: {first_line(error)}"
        return _unknown(message, "check it on the device")
    word = answer.name.removeprefix("EP_").replace("_", " ").lower()
    message = f"{name} on this host rates it {word}"
    if answer.name == "EP_NOT_APPLICABLE":
        return _unknown(f"{message}: {info}", "check it on the device")
    outcome: Outcome = "fail" if answer.name == "EP_UNSUPPORTED" else "pass"
    return Verdict(outcome=outcome, message=message, remedy=_REMEDIES.get(answer.name, ""))


def _unknown(message: str, remedy: str) -> Verdict:
    return Verdict(outcome="not checkable", message=message, remedy=remedy)


def _finding(model: ContextModel, check: str, verdict: Verdict) -> Finding:
    fields = verdict.outcome, verdict.message, verdict.remedy
    return Finding("compatibility", check, model.file, *fields)


_REPACKAGE: Final = "package it again: ONNX Runtime selects by what the package says"


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Check that the EP and the compatibility string of each claim are those of the model."""

    claims: tuple[Claim, ...]
    name: PolicyName = field(default="compatibility", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Finding]:
        """Check each claim; conformance reports models that cannot be read."""
        models = {model.file: model for model in folder.models}
        for claim in self.claims:
            model = models.get(claim.model)
            faults = []
            if model is not None:
                faults = [*_faults(claim, model, folder), *_astray(claim, model)]
            for fault in faults:
                yield Finding(
                    "compatibility",
                    "variant",
                    claim.model,
                    "fail",
                    f"{fault} (variant {claim.variant})",
                    _REPACKAGE,
                )
            if model is not None and not faults:
                yield Finding(
                    "compatibility",
                    "variant",
                    claim.model,
                    "pass",
                    f"matches variant {claim.variant}",
                )


def _faults(claim: Claim, model: ContextModel, folder: GroupFolder) -> Iterator[str]:
    providers = {source: folder.providers.find(source) for source in model.sources}
    names = {provider.name for provider in providers.values() if provider is not None}
    if claim.ep not in (names or {DEFAULT_EP}) and None not in providers.values():
        own_eps = ", ".join(sorted(names)) or DEFAULT_EP
        yield f"is for {own_eps}, but the package says {claim.ep}"
    own = model.metadata.get(COMPATIBILITY + claim.ep)
    if own != claim.compatibility:
        said = _shown(claim.compatibility)
        yield f"its compatibility string is {_shown(own)}, but the package says {said}"


def _astray(claim: Claim, model: ContextModel) -> Iterator[str]:
    """Find a model with external data in another folder, where QNN 2.7.0 and OpenVINO 1.8.1 also
    look for its context binaries.
    """
    if claim.astray and model.contexts:
        yield (
            "has external data in another folder, and no `ep.context_file_path`: EPs look for "
            f"{model.contexts[0]} in the folder of the data"
        )


def _shown(text: str | None) -> str:
    if text is None:
        return "none"
    return repr(text if len(text) <= 160 else f"{text[:159]}…")
