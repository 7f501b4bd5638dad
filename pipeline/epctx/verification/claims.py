"""Check of a model package's claims about a model against the model itself.

A variant is selected by its EP and its compatibility string: one that is not the model's own
selects the model where it does not run, or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from epctx.graph.epcontext import COMPATIBILITY
from epctx.manifest import DEFAULT_EP
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.request import Claim

_finding: Final = partial(Finding, "compatibility", "variant")
_REMEDY: Final = "package it again: ONNX Runtime selects by what the package says"


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Each claim: the EP has the model's nodes, and wrote the compatibility string."""

    claims: tuple[Claim, ...]
    name: PolicyName = field(default="compatibility", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Finding]:
        """Look at each claim; a model that cannot be read was told before."""
        models = {model.file: model for model in folder.models}
        for claim in self.claims:
            model = models.get(claim.model)
            faults = []
            if model is not None:
                faults = [*_faults(claim, model, folder), *_astray(claim, model)]
            for fault in faults:
                yield _finding(claim.model, "fail", f"{fault} (variant {claim.variant})", _REMEDY)
            if model is not None and not faults:
                yield _finding(claim.model, "pass", f"is what variant {claim.variant} says")


def _faults(claim: Claim, model: ContextModel, folder: GroupFolder) -> Iterator[str]:
    found = {source: folder.providers.find(source) for source in model.sources}
    names = {provider.name for provider in found.values() if provider is not None}
    if claim.ep not in (names or {DEFAULT_EP}) and None not in found.values():
        yield f"is said to be for {claim.ep}, and is for {', '.join(sorted(names)) or DEFAULT_EP}"
    own = model.metadata.get(COMPATIBILITY + claim.ep)
    if own != claim.compatibility:
        yield f"is said to be compatible with {_shown(claim.compatibility)}, it says {_shown(own)}"


def _astray(claim: Claim, model: ContextModel) -> Iterator[str]:
    """QNN 2.7.0 and OpenVINO 1.8.1 look for context binaries where external data is."""
    if claim.astray and model.contexts:
        yield (
            "has its external data elsewhere, and no `ep.context_file_path`: real EPs look for "
            f"{model.contexts[0]} in the folder of the data"
        )


def _shown(text: str | None) -> str:
    if text is None:
        return "nothing"
    return repr(text if len(text) <= 160 else f"{text[:159]}…")
