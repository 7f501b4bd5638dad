"""EPContext folders made by hand, right in every way; tests then break one thing each."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from epctx.actions import verify
from epctx.actions.action import Action, carry_out
from epctx.manifest import ModelGroup, ModelSource, ProviderSpec
from epctx.providers.base import Outcome
from epctx.verification.findings import Finding, FolderReport, PolicyName
from epctx.verification.request import Kept, VerifyRequest
from tests.kit.sealing import without_graphs

SOURCE = "reference"
NO_RUN: tuple[PolicyName, ...] = ("integrity", "conformance", "compatibility")


def context_node(name: str = "main_0", **attributes: Any) -> onnx.NodeProto:
    """An EPContext node from x to y; None leaves an attribute out."""
    given: dict[str, Any] = {
        "main_context": 1,
        "embed_mode": 0,
        "ep_cache_context": "m_reference.bin",
        "source": SOURCE,
        "partition_name": name,
        "ep_sdk_version": "1.0.0",
        **attributes,
    }
    kept = {key: value for key, value in given.items() if value is not None}
    return helper.make_node("EPContext", ["x"], ["y"], name=name, domain="com.microsoft", **kept)


def model(*nodes: onnx.NodeProto, initializers: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
    """x -> EPContext -> y -> Relu -> z, or the nodes given."""
    chosen = nodes or (context_node(),)
    relu = helper.make_node("Relu", ["y"], ["z"], name="relu")
    graph = helper.make_graph(
        [*chosen, relu],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])],
        list(initializers),
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write(folder: Path, made: onnx.ModelProto | None = None, *, sums: bool = True) -> Path:
    """A folder with `m_ctx.onnx`, its binary and its sums."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m_ctx.onnx").write_bytes((made or model()).SerializeToString())
    (folder / "m_reference.bin").write_bytes(without_graphs())
    if sums:
        write_sums(folder)
    return folder


def write_sums(folder: Path) -> None:
    """SHA256SUMS of all that is in the folder."""
    files = sorted(p for p in folder.iterdir() if p.name != "SHA256SUMS" and p.is_file())
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in files]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")


def group(*names: str, **changes: Any) -> ModelGroup:
    """A model group of the reference EP; its sources need not exist."""
    sources = tuple(
        ModelSource(name=name, path=Path(f"/nowhere/{name}.onnx")) for name in names or ("m",)
    )
    spec = ProviderSpec(alias="ref", provider="ReferenceExecutionProvider")
    given: dict[str, Any] = {
        "name": "g",
        "models": sources,
        "execution_providers": (spec,),
        **changes,
    }
    return ModelGroup(**given)


class Ended(BaseException):
    """Raised by tests in a run: the budget of numbers ends the process."""


def carried_out(job: Sequence[Action[Any]]) -> list[Any]:
    """Carry out a job in this process; return the results before it was ended."""
    results: list[Any] = []
    with contextlib.suppress(Ended):
        for result in carry_out(job, lambda stage: None):
            results.append(result)
    return results


def report(folder: Path, policies: Sequence[PolicyName] = NO_RUN, **request: Any) -> FolderReport:
    """Verify a folder, in this process."""
    with tempfile.TemporaryDirectory(prefix="epctx-kept-") as scratch:
        given = {"kept": Kept.below(Path(scratch)), **request}
        asked = VerifyRequest(folder=folder, label="here", policies=tuple(policies), **given)
        return verify.verified(asked, carried_out)


def found(
    folder: Path, check: str, outcome: Outcome | None = None, **request: Any
) -> list[Finding]:
    """The findings of one check."""
    findings = report(folder, **request).findings
    return [f for f in findings if f.check == check and outcome in (None, f.outcome)]


def outcomes(findings: Sequence[Finding]) -> list[str]:
    """Their outcomes."""
    return [finding.outcome for finding in findings]


Break = Callable[[onnx.ModelProto], None]
