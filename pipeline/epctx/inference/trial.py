"""Run a model once or more, on inputs from files or generated inputs, and report the outputs."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from zipfile import ZipFile

from msgspec import Struct, field
from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, ModelError, StorageError, UsageError
from epctx.files.atomic import replacing
from epctx.inference import selection
from epctx.inference.options import ASSIGNMENT
from epctx.manifest import DEFAULT_EP, OptionValue
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.text import Brief, did_you_mean, first_line

if TYPE_CHECKING:
    from epctx.graph.inputs import Array, InputSpec
    from epctx.inference.feeds import Feeds
    from epctx.inference.session import Session
    from epctx.inference.values import NodeArg


class OutputReport(Struct, frozen=True, kw_only=True):
    """An output of one run. Statistics cover the finite values; None if there are none.

    Attributes:
        kind: `float32`, ...; `string`.
        not_finite: number of values that are NaN or infinite.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    least: float | None = None
    mean: float | None = None
    greatest: float | None = None
    not_finite: int = 0


class CaseReport(Struct, frozen=True, kw_only=True):
    """Result of one input set. `seconds`: median wall time of its runs."""

    label: str
    seconds: float
    runs: int
    outputs: tuple[OutputReport, ...]
    saved: Path | None = None


class RunReport(Brief, frozen=True, kw_only=True):
    """Result of `run`.

    Attributes:
        providers: the EPs that ran the model, the default EP last.
        simulated: the EPs that ran on a simulator, since this host lacks their kind of device.
        nodes: number of nodes that each EP ran, after ONNX Runtime's optimizations.
        load_seconds: wall time until the session was ready.
    """

    model: Path
    providers: tuple[str, ...]
    load_seconds: float
    cases: tuple[CaseReport, ...]
    nodes: Mapping[str, int] = field(default_factory=dict)
    simulated: tuple[str, ...] = ()


class RunJob(Struct, frozen=True, kw_only=True):
    """Arguments of `run`, as they are sent to a worker.

    Attributes:
        folder: the caller's current folder, against which paths, also in options, are resolved.
    """

    folder: Path
    model: Path
    inputs: tuple[Path, ...] = ()
    providers: tuple[tuple[str, dict[str, OptionValue]], ...] | None = None
    seed: int = 0
    count: int = 1
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    dimensions: dict[str, int] = field(default_factory=dict)
    repeat: int = 1
    save: Path | None = None
    warnings: bool = False


def run(job: RunJob) -> RunReport:
    """Run a model in this process, in `job.folder`, which becomes its current folder.

    Raises:
        UsageError: inputs do not match the model, or the model fails on them.
        ModelError: the model, or a file of inputs, is missing or broken.
        InvalidGraph: the model's contexts cannot be loaded.
        ProviderUnavailable: a named EP is not installed, or has no device here.
        ManifestError: an EP does not have an option, or does not accept its value.
        CompileError: a named EP takes no node of the model, or fails on it.
        StorageError: the outputs cannot be saved.
    """
    import onnxruntime as ort

    from epctx.inference.session import Session

    os.chdir(job.folder)
    options = ort.SessionOptions()
    options.log_severity_level = 2 if job.warnings else 3
    options.add_session_config_entry(ASSIGNMENT, "1")
    cases = list(
        _cases(
            _specs(job.model, job.dimensions),
            job.inputs,
            seed=job.seed,
            count=job.count,
            ranges=job.ranges,
        )
    )
    begun = time.perf_counter()
    named = selection.bind(job.providers, None)
    with Session(job.model, options, providers=named, dimensions=job.dimensions) as session:
        loaded = time.perf_counter() - begun
        nodes = session.get_node_counts()
        selection.require_each(named or (), nodes, str(job.model))
        reports = []
        for number, (label, feeds) in enumerate(cases):
            seconds, outputs = _measure(session, feeds, job.repeat, label)
            target = _target(job.save, number, len(cases)) if job.save is not None else None
            if target is not None:
                _save(target, outputs)
            reports.append(
                CaseReport(
                    label=label,
                    seconds=seconds,
                    runs=job.repeat,
                    outputs=tuple(_describe(name, out) for name, out in outputs.items()),
                    saved=target,
                )
            )
        return RunReport(
            model=job.model,
            providers=tuple(session.get_providers()),
            load_seconds=loaded,
            cases=tuple(reports),
            nodes=nodes,
            simulated=tuple(_simulated(session.get_providers(), named or ())),
        )


def _simulated(names: Iterable[str], bound: Sequence[ExecutionProvider]) -> Iterator[str]:
    """Yield the EPs that have no device of their own kind here, and so run on a simulator."""
    providers = {provider.name: provider for provider in bound}
    for name in names:
        provider = providers.get(name) or (registry.bind(name, {}) if name != DEFAULT_EP else None)
        if provider is None or (kind := provider.device_kind()) is None:
            continue
        if kind not in {each.device.type.name.lower() for each in provider.ep_devices()}:
            yield name


def _specs(path: Path, dimensions: Mapping[str, int]) -> tuple[InputSpec, ...]:
    from epctx.graph import inputs as graph_inputs
    from epctx.graph.serde import reader

    specs = graph_inputs.specs(reader.read(path))
    open_names = {name for spec in specs for name in spec.open.values()}
    for name in dimensions:
        if name not in open_names:
            raise UsageError(
                f'no input has a dimension "{name}"',
                remedy=did_you_mean(name, open_names),
                code=Code.INPUT_MISFIT,
            )
    return tuple(spec.fixed(dimensions) for spec in specs)


def _cases(
    specs: Sequence[InputSpec],
    files: Sequence[Path],
    *,
    seed: int,
    count: int,
    ranges: Mapping[str, tuple[float, float]],
) -> Iterator[tuple[str, Feeds]]:
    from epctx.inference import feeds

    try:
        if files:
            for values in feeds.read(files):
                yield values.label, feeds.fit(values, specs)
            return
        for spec in specs:
            if spec.problem is not None:
                raise UsageError(spec.problem, remedy=_unfixed(spec), code=Code.INPUT_MISFIT)
        for problem in feeds.problems(specs, count=count):
            raise UsageError(
                problem, remedy="give its values: --input FILE", code=Code.INPUT_MISFIT
            )
        for name in ranges:
            if name not in {spec.name for spec in specs}:
                raise UsageError(
                    f'a range is given for "{name}", which is not an input of the model',
                    remedy=did_you_mean(name, [spec.name for spec in specs]),
                    code=Code.INPUT_MISFIT,
                )
        for index in range(count):
            values_ = feeds.generate(specs, seed=seed, index=index, ranges=ranges)
            yield f"seed {seed}, set {index}", values_
    except ManifestError as error:  # the error concerns the caller's arguments, not a manifest
        raise UsageError.of(error.failure) from error


def _unfixed(spec: InputSpec) -> str:
    if spec.remedy is not None:
        return spec.remedy
    if not spec.open:
        return "give its values: --input FILE"
    sizes = " ".join(f"--dimension {shlex.quote(f'{name}=1')}" for name in spec.open.values())
    return f"give its sizes, like {sizes}, or its values: --input FILE"


def _measure(
    session: Session, feeds: Feeds, repeat: int, label: str
) -> tuple[float, dict[str, Array]]:
    outputs = session.get_outputs()
    names = [arg.name for arg in outputs]
    times = []
    results: list[object] = []
    for _ in range(max(repeat, 1)):
        begun = time.perf_counter()
        try:
            results = session.run(names, feeds)
        except EpctxError:
            raise
        except Exception as error:  # onnxruntime's errors have no common base class
            raise UsageError(
                "the model fails on these inputs",
                where=label,
                why=first_line(error),
                remedy="give inputs in the range that the model expects: --range NAME=LOW,HIGH, "
                "or --input FILE",
                code=Code.INPUT_MISFIT,
            ) from error
        times.append(time.perf_counter() - begun)

    return median(times), dict(_tensors(outputs, results))


def _tensors(outputs: Sequence[NodeArg], results: Sequence[object]) -> Iterator[tuple[str, Array]]:
    import numpy as np

    from epctx.inference import values

    names, kinds = [each.name for each in outputs], [each.type for each in outputs]
    for name, value in values.flat(names, results, kinds):
        if isinstance(value, np.ndarray | np.generic):
            yield name, np.asarray(value)
        elif value is not None:
            raise ModelError(
                f"output {name!r} is a {type(value).__name__}, not a tensor",
                remedy="run the model with onnxruntime; epctx reports tensors only",
            )


def _describe(name: str, array: Array) -> OutputReport:
    import numpy as np

    if array.dtype.kind in "OUSc":
        kind = "string" if array.dtype.kind != "c" else str(array.dtype)
        return OutputReport(name=name, kind=kind, shape=array.shape)
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    report = OutputReport(
        name=name,
        kind=str(array.dtype),
        shape=array.shape,
        not_finite=int(values.size - finite.size),
    )
    if not finite.size:
        return report
    return replace(
        report,
        least=float(finite.min()),
        mean=float(finite.mean()),
        greatest=float(finite.max()),
    )


def _target(save: Path, number: int, count: int) -> Path:
    return save if count == 1 else save.with_name(f"{save.stem}-{number}{save.suffix}")


def _save(path: Path, outputs: Mapping[str, Array]) -> None:
    """Save the arrays atomically. `numpy.savez` cannot store an array of the name `file`."""
    from numpy.lib.format import write_array

    with StorageError.if_refused(
        "cannot be written", file=str(path), remedy="give another file with --save"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)

        with replacing(path) as file, ZipFile(file, "w") as archive:
            for name, array in outputs.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    write_array(stream, _storable(array), allow_pickle=False)


def _storable(array: Array) -> Array:
    """Convert an array to a type that numpy's files support: bfloat16 and float8 become float32."""
    import numpy as np

    if array.dtype.kind == "O":
        return array.astype(np.str_)
    return array.astype(np.float32) if array.dtype.isbuiltin == 2 else array
