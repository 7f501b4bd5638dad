"""Build reports for tests of the page: made, as no build has all of their cases at once."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from epctx.engine.report import (
    ActionReport,
    BuildReport,
    EpReport,
    GroupReport,
    Host,
    StageTime,
)
from epctx.error_codes import Code
from epctx.errors import Failure, LogTail
from epctx.files.digest import of_bytes
from epctx.files.outputs import OutputFile
from epctx.graph.model import Decline, Outline, PassRecord
from epctx.manifest import Tolerance
from epctx.providers.base import Outcome
from epctx.quantization.report import QuantizeReport, TensorLoss
from epctx.stages.report import ModelReport, PartitionReport
from epctx.verification.findings import Comparison, Finding, FolderReport, OutputNumbers, Worst


def file(name: str, size: int) -> OutputFile:
    content = of_bytes(name.encode())
    return OutputFile(name=name, size=size, sha256=content, blake3=content)


def chain(
    count: int, *, left: int = 4, name: str = "node {}", why: str = "excluded"
) -> ModelReport:
    """Nodes one after the other; each `left`-th is left to the default EP."""
    owners, part = [], 0
    for node in range(count):
        if node % left == left - 1:
            owners.append(-1)
            part += 1
        else:
            owners.append(part)
    names = tuple(name.format(node) for node in range(count))
    return ModelReport(
        name="chain",
        passes=(PassRecord(name="fold-constants", changed={"Add": 3}),),
        nodes=count,
        coverage=1 - 1 / left,
        partitions=tuple(
            PartitionReport(provider="npu", nodes=owners.count(p), inputs=("x",), outputs=("y",))
            for p in range(max(owners) + 1)
        ),
        declined=tuple(
            Decline(node=names[n], op_type="TopK", domain="", reasons=(("npu", why),))
            for n in range(count)
            if owners[n] < 0
        ),
        outline=Outline(
            names=names,
            op_types=("Relu", "TopK"),
            ops=tuple(int(owner < 0) for owner in owners),
            owners=tuple(owners),
            predecessors=tuple((node - 1,) if node else () for node in range(count)),
        ),
    )


def quantized(**changes: Any) -> QuantizeReport:
    """How a model was quantized: well."""
    made = QuantizeReport(
        preset="qnn",
        activations="uint16",
        weights="uint8",
        samples=100,
        random=False,
        limited=(),
        range_floor=None,
        bodies=(),
        quantized=11,
        nodes=12,
        size=1000,
        float_size=4000,
        outputs=(TensorLoss(name="y", op_type="MatMul", sqnr=27.2),),
        tensors=(TensorLoss(name="h", op_type="Relu", sqnr=31.5),),
    )
    return replace(made, **changes)


def numbers(output: str, max_rel: float, *, passed: bool = True) -> OutputNumbers:
    return OutputNumbers(
        model="chain_ctx.onnx",
        output=output,
        input_set="seed 0, set 0",
        sessions="files",
        comparison=Comparison(
            dtype="float32",
            shape=(1, 3),
            max_abs=max_rel * 2,
            max_rel=max_rel,
            cosine=1.0,
            worst=Worst(index=(0, 1), expected="2", actual="2.1"),
        ),
        tolerance=Tolerance(cosine_min=0.99, max_rel=0.01),
        passed=passed,
    )


def _found(outcome: Outcome, message: str, remedy: str) -> Finding:
    return Finding("numbers", "outputs", "chain_ctx.onnx", outcome, message, remedy)


def report(model: ModelReport | None = None) -> BuildReport:
    """A group that was built for two targets, and one that failed."""
    built = GroupReport(
        target="edge",
        group="eye",
        state="built",
        folder="made/edge/eye",
        files=(file("chain_npu.bin", 3_000_000), file("chain_ctx.onnx", 900)),
        models=(model or chain(12),),
        verify=FolderReport(
            folder="eye@edge",
            models=("chain_ctx.onnx",),
            findings=(
                Finding("integrity", "sums", ".", "pass", "ok"),
                _found("not checkable", "not on this host", "run it on a device"),
            ),
            numbers=(numbers("near", 0.009), numbers("far", 0.02, passed=False)),
        ),
        actions=(ActionReport(action="compile", subject="chain", key="blake3:ab", ran=True),),
        stages=(
            StageTime(stage="load", subject="chain", start=0.5, end=1.0),
            StageTime(stage="compile", subject="chain", start=1.0, end=9.5),
        ),
    )
    failed = GroupReport(
        target="edge",
        group="ear",
        state="failed",
        failure=Failure(
            kind="CompileError",
            exit_code=6,
            code=Code.CRASHED,
            what="crashed",
            why="a bug",
            remedy="report it",
        ),
    )
    again = GroupReport(
        target="cloud", group="eye", state="up to date", models=(model or chain(12),)
    )
    return BuildReport(
        schema_version=1,
        epctx="0.1.0",
        name="made",
        started="2026-01-02T03:04:05+00:00",
        seconds=10.0,
        host=Host(system="Linux", machine="x86_64", python="3.11.7", packages={"onnx": "1.0"}),
        groups=(built, failed, again),
    )


def failing() -> BuildReport:
    """A build of which one group failed in verify, one before anything was compiled.

    Two were skipped. What is known of the first one is there: models, numbers, log, EPs, manifest.
    """
    made = report()
    built, crashed, _ = made.groups
    assert built.verify is not None
    far = numbers("far", 0.4, passed=False)
    counted = replace(far.comparison, histogram=(0, 0, 0, 0, 0, 0, 2, 1, 0, 7, 0))
    broken = _found("fail", "output 'far' is 0.4 off", "allow more")
    failed = replace(
        built,
        state="failed",
        group="nose",
        folder=None,
        files=(),
        verify=replace(
            built.verify,
            findings=(*built.verify.findings, broken),
            numbers=(replace(far, comparison=counted),),
        ),
        failure=Failure(
            kind="VerificationError",
            exit_code=7,
            code=Code.NUMBERS,
            what="output 'far' is 0.4 off",
            remedy="allow more",
            where="model chain",
            why="float16 overflows",
        ),
        log=LogTail(file="made.logs/nose.log", lines=("[W] overflow", "[E] <b>end</b>")),
        execution_providers=(
            EpReport(
                alias="npu",
                provider="QNNExecutionProvider",
                options={"soc_model": "60"},
                toolchain={"QAIRT": "2.51"},
            ),
        ),
        manifest={"models": ["chain"], "partition": {"require_coverage": 0.5}},
    )
    skipped = tuple(
        GroupReport(target="edge", group=name, state="skipped") for name in ("arm", "leg")
    )
    return replace(made, groups=(built, crashed, failed, *skipped))
