"""Every fault that harms the users of a model is found, in models nobody tuned this for.

The compiled model has one fault; then it is verified against the model without it, as a user would.
`truth` measures the harm by the model's task. `make soak` prints the table of what was caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from epctx import api
from tests.mutation import architectures, task, truth
from tests.mutation.faults import FAULTS, mutants
from tests.mutation.task import Effect

DEFAULTS = {"float": (5e-5, 0.999999), "quantized": (5e-2, 0.999)}
"""Largest relative error and least cosine, of the reference EP by precision."""
NPU = (0.2, 0.99)
"""Those of QNN for float models, which allow most."""
HARM = {5e-5: 0.01, 5e-2: 0.1, 0.2: 0.1}
"""Effect on the task beyond which no fault may be missed, by the largest relative error allowed."""
TASKS: Mapping[str, tuple[task.Task, ...]] = {
    "CNN, mobile": (task.logits,),
    "CNN, U-Net": (task.probability,),
    "CNN, residual": (task.probabilities,),
    "transformer, encoder": (task.embedding, task.embedding),
    "transformer, vision": (task.logits,),
    "transformer, decoder": (task.logits,),
    "LSTM": (task.embedding,),
    "GRU": (task.embedding,),
    "mask, scores": (task.embedding, task.logits),
    "mask, logits": (task.logits,),
    "quantized CNN": (task.logits,),
    "quantized encoder": (task.embedding, task.embedding),
}
"""What the outputs of each architecture are for."""


@dataclass(frozen=True)
class Mutant:
    """A fault, where it is, what it does, and what verification said of it."""

    kind: str
    place: str
    effect: Effect
    verdict: str


def built(
    model: onnx.ModelProto, faulty: Sequence[onnx.ModelProto], folder: Path, provider: str
) -> Path:
    """A manifest whose outputs were made of `faulty`, while its sources are `model` by now."""
    models = folder / "models"
    models.mkdir(parents=True)
    names = [f"m{number}" for number in range(len(faulty))]
    for name, each in zip(names, faulty, strict=True):
        onnx.save(each, models / f"{name}.onnx")
    for number, given in enumerate(architectures.inputs(model, 2)):
        np.savez(folder / f"case{number}.npz", allow_pickle=False, **given)
    manifest = folder / "mutants.yaml"
    manifest.write_text(text(names, provider, None), encoding="utf-8")
    api.build(manifest, out=folder / "dist", verify=False, keep_going=True)
    for name in names:
        onnx.save(model, models / f"{name}.onnx")
    return manifest


def text(names: Sequence[str], provider: str, limits: tuple[float, float] | None) -> str:
    """The manifest: one group for each mutant."""
    tolerance = (
        "" if limits is None else f", tolerance: {{max_rel: {limits[0]}, cosine_min: {limits[1]}}}"
    )
    lines = ["schema_version: 1", "name: mutants", "models:"]
    lines += [f"  {name}: {{path: models/{name}.onnx}}" for name in names]
    lines += ["execution_providers:", f"  ep: {provider}", "model_groups:"]
    for name in names:
        lines.append(
            f"  {name}: {{models: [{name}], execution_providers: [ep], "
            f"verify: {{inputs: {{files: [case0.npz, case1.npz]}}{tolerance}}}}}"
        )
    return "\n".join(lines) + "\n"


def verdicts(manifest: Path) -> Mapping[str, str]:
    """What verification says of each mutant: caught, not checkable, or passed."""
    report = api.verify(manifest.parent / "dist", manifest=manifest)
    found = {}
    for folder in report.folders:
        of_outputs = [f for f in folder.findings if f.policy == "numbers"]
        outcomes = {f.outcome for f in of_outputs}
        judged = {f.outcome for f in of_outputs if f.check == "outputs"}
        name = Path(folder.folder).name
        if "fail" in outcomes:
            found[name] = "caught"
        else:
            found[name] = "passed" if judged == {"pass"} else "not checkable"
    return found


def table(
    name: str, folder: Path, provider: str, limits: tuple[float, float] | None, count: int
) -> list[Mutant]:
    """All mutants of an architecture, verified."""
    if name in architectures.QUANTIZED:
        model = architectures.quantize(architectures.QUANTIZED[name](), folder)
    else:
        model = architectures.MODELS[name]()
    given = list(architectures.inputs(model, 2))
    right = truth.run(model, given)
    known = [
        (kind, place, mutant, truth.effect(TASKS[name], right, truth.run(mutant, given)))
        for kind in FAULTS
        for place, mutant in mutants(model, kind, count)
    ]
    faulty = [model, *(mutant for _, _, mutant, _ in known)]
    manifest = built(model, faulty, folder / "built", provider)
    names = [f"m{number}" for number in range(len(faulty))]
    manifest.write_text(text(names, provider, limits), encoding="utf-8")
    said = verdicts(manifest)
    assert said["m0"] == "passed", "a model without a fault"
    return [
        Mutant(kind, place, effect, said.get(f"m{number}", "not built"))
        for number, (kind, place, _, effect) in enumerate(known, 1)
    ]


def missed(found: Sequence[Mutant], limits: tuple[float, float]) -> Iterator[Mutant]:
    """What should have been caught and was not."""
    for each in found:
        if each.effect.task > HARM[limits[0]] and each.verdict not in ("caught", "not built"):
            yield each


def report(name: str, found: Sequence[Mutant], limits: tuple[float, float]) -> None:
    """A row of the table."""
    harm = sum(m.effect.task > HARM[limits[0]] for m in found)
    count = {v: sum(m.verdict == v for m in found) for v in ("caught", "not checkable", "passed")}
    kinds = " ".join(
        f"{kind} {sum(m.verdict == 'caught' for m in found if m.kind == kind)}"
        f"/{sum(m.kind == kind for m in found)}"
        for kind in FAULTS
    )
    print(
        f"{name:22s} {limits[0]:g}: {len(found)} faults, {harm} that harm, "
        f"{count['caught']} caught, {count['not checkable']} not checkable; {kinds}"
    )


REFERENCE = "{provider: ReferenceExecutionProvider}"
HTP = "{provider: QNNExecutionProvider, options: {soc_model: sc8380xp}}"
ALL = [*architectures.MODELS, *architectures.QUANTIZED]


@pytest.mark.parametrize("name", ["GRU", "mask, scores"])
def test_faults_are_found(name: str, tmp_path: Path) -> None:
    """A sample of the table, by the reference EP's own limits."""
    limits = DEFAULTS["float"]
    found = table(name, tmp_path, REFERENCE, None, count=1)
    assert len(found) >= 4 and not list(missed(found, limits))


@pytest.mark.soak
@pytest.mark.parametrize("allowed", ["default", "npu"])
@pytest.mark.parametrize("name", ALL)
def test_no_fault_that_harms_is_missed(name: str, allowed: str, tmp_path: Path) -> None:
    limits = NPU
    if allowed == "default":
        limits = DEFAULTS["quantized" if name in architectures.QUANTIZED else "float"]
    asked = None if allowed == "default" else NPU
    found = table(name, tmp_path, REFERENCE, asked, count=4)
    report(name, found, limits)
    assert not list(missed(found, limits))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["CNN, mobile", "transformer, encoder", "LSTM", "mask, logits"])
def test_no_fault_that_harms_is_missed_on_a_real_ep(name: str, tmp_path: Path) -> None:
    found = table(name, tmp_path, HTP, None, count=1)
    report(f"QNN, {name}", found, NPU)
    assert not list(missed(found, NPU))
