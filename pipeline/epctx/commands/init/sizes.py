"""Find sizes of open dimensions at which a model runs, so that a starter manifest builds.

Sizes come from the user, from input files, from the exporter's metadata in the model, from
conventions, and last from a search (`actions.find_sizes`). The model is loaded and run in a process
of its own, because native code may crash.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from epctx import limits
from epctx.actions.find_sizes import FindSizes, SizesResult, total
from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.commands.init.options import SizeOptions
from epctx.engine.actions import optimize
from epctx.engine.executor import Executor, Scheduler, one
from epctx.error_codes import Code
from epctx.errors import CompileError, ManifestError, ModelError, TimedOut
from epctx.graph.inputs import InputSpec
from epctx.inference import feeds
from epctx.manifest import ModelSource, OptimizeSettings
from epctx.verification.numbers.sizes import Sizes
from epctx.worker.pool import Pool

if TYPE_CHECKING:
    import onnx

_NAMES: Final = (
    ("batch", re.compile(r"batch(?!.*([-+*]|plus))|^(n|b|bs)$", re.IGNORECASE)),
    ("height", re.compile(r"height|^h$", re.IGNORECASE)),
    ("width", re.compile(r"width|^w$", re.IGNORECASE)),
    ("channels", re.compile(r"channel|^c$", re.IGNORECASE)),
    ("length", re.compile(r"past|cache|seq|len|token|time|frame|^[stl]$", re.IGNORECASE)),
)
"""Roles of dimensions, with the names that exporters use for them."""
_STATE: Final = re.compile(r"state|hidden|cell|^[hc]\d?$|^[hc]_?(in|0)$", re.IGNORECASE)
"""Names of the states of recurrent networks: [layers, batch, features]."""
_SOUND: Final = re.compile(r"audio|wav|speech|pcm|samples|signal", re.IGNORECASE)
_CHANNELS: Final = (1, 3, 4)
_SIDES: Final = (
    *((224, 224), (48, 320), (256, 256), (320, 320), (384, 384), (512, 512), (640, 640)),
    *((32, 320), (299, 299), (192, 192), (128, 128), (96, 96), (64, 64), (32, 32)),
)
"""Heights and widths of images, including lines of text."""
_LENGTHS: Final = (
    *((64, 512, 16000), (128, 16000, 512), (256, 1024, 1024), (512, 256, 4096), (32, 128, 256)),
    *((16, 64, 128), (16000, 32, 48000)),
)
"""Lengths of sequences and signals, and lengths of sound in samples."""


class Sized(Struct, frozen=True, kw_only=True):
    """Sizes of all open dimensions of a model, by the names in `InputSpec.open`.

    Attributes:
        guessed: names of the dimensions with sizes that epctx guessed.
        runs: True if the model runs here at these sizes.
        why: ONNX Runtime's message if the model does not run.
        ended: the limit that ended the search before sizes were found; empty if none did.
    """

    sizes: Sizes
    guessed: tuple[str, ...] = ()
    runs: bool = True
    why: str = ""
    ended: str = ""


def find(
    model: Path,
    proto: onnx.ModelProto,
    inputs: Sequence[InputSpec],
    size_options: SizeOptions,
) -> Sized:
    """Return a size for each open dimension.

    Args:
        model: the ONNX file.
        proto: the model without its weights.
        inputs: inputs that must be fed.
        size_options: sizes that the user gives.

    Raises:
        ModelError: the model cannot be built, or a file cannot be read.
        UsageError: a given shape does not fit its input.
    """
    if not proto.graph.node:
        raise ModelError(
            "has no node",
            file=model.as_posix(),
            why="there is nothing to compile",
            remedy="export the model again",
        )
    roles: dict[str, str] = {}
    for spec in inputs:
        for axis, name in spec.open.items():
            roles.setdefault(name, _role(spec, axis))
    noted = _noted(proto)
    fixed = {name: noted[role] for name, role in roles.items() if role in noted}
    fixed |= {**_measured(inputs, size_options.files), **size_options.of(inputs)}
    source = ModelSource(name=model.stem, path=model.absolute())
    with tempfile.TemporaryDirectory(prefix="epctx-init-") as scratch:
        folder = Path(scratch)
        with Scheduler(Pool(work=folder / "work", logs=folder / "logs")) as scheduler:
            missing_data = _load(scheduler.executor, source, model, folder / "loaded")
            sized = Sized(sizes={})
            if roles and missing_data is not None:
                sizes = next(_proposals(inputs, roles, fixed))
                return Sized(sizes=sizes, guessed=tuple(roles), runs=False, why=missing_data)
            if roles:
                sized = _search(scheduler.executor, source, inputs, roles, fixed)
            if size_options.ask is not None and sized.guessed:
                answers = {
                    name: size_options.ask(name, sized.sizes[name]) for name in sized.guessed
                }
                corrections = {n: size for n, size in answers.items() if size != sized.sizes[n]}
                if corrections:
                    fixed |= corrections
                    sized = _search(scheduler.executor, source, inputs, roles, fixed)
    return sized


def _search(
    executor: Executor,
    source: ModelSource,
    inputs: Sequence[InputSpec],
    roles: Mapping[str, str],
    fixed: Sizes,
) -> Sized:
    proposals = tuple(_proposals(inputs, roles, fixed))
    action = FindSizes(
        source=source,
        fixed=fixed,
        proposals=proposals,
        single=tuple(name for name, role in roles.items() if role == "batch"),
    )
    guessed = tuple(name for name in roles if name not in fixed)
    seconds = 4 * limits.SIZE_SECONDS.value  # a model that is run may hang
    try:
        with executor.lease(None) as lease:
            result: SizesResult = one(lease, action, timeout=seconds)
    except CompileError as error:
        result = SizesResult(sizes=None, why=error.reason)
    except TimedOut:
        ended = f"{seconds} s; {limits.SIZE_SECONDS.variable} sets a quarter of that"
        result = SizesResult(sizes=None, ended=ended)
    if result.sizes is None:
        why, ended = result.why, result.ended
        return Sized(sizes=proposals[0], guessed=guessed, runs=False, why=why, ended=ended)
    return Sized(sizes=result.sizes, guessed=guessed)


def _load(executor: Executor, source: ModelSource, model: Path, folder: Path) -> str | None:
    """Load the model as a build does, for better error messages. Raises ModelError.

    Returns:
        The message about missing weights, which may be added later; None if nothing is missing.
    """

    def carried_out(job: Optimize) -> OptimizeResult:
        with executor.lease(None) as lease:
            return one(lease, job)

    job = Optimize.of(source, OptimizeSettings(level="none"), folder)
    try:
        optimize.run(job, carried_out)
    except ModelError as error:
        if error.code == Code.DATA_MISSING:
            return error.reason
        if error.file == str(source.path):
            error.file = model.as_posix()
        raise
    return None


def _measured(inputs: Sequence[InputSpec], files: Sequence[Path]) -> dict[str, int]:
    """Sizes from the first input file that fits the model; all .pb files count as one."""
    alone = [[path] for path in files if path.suffix != ".pb"]
    for few in (*alone, [path for path in files if path.suffix == ".pb"]):
        for values in feeds.read(few):
            with contextlib.suppress(ManifestError):
                fitted = feeds.fit(values, inputs)
                sizes = [
                    (n, fitted[s.name].shape[axis]) for s in inputs for axis, n in s.open.items()
                ]
                return {name: size for name, size in sizes if size}
    return {}


def _noted(proto: onnx.ModelProto) -> dict[str, int]:
    """Sizes that an exporter, such as Ultralytics, wrote into the model's metadata, by role."""
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    image = re.fullmatch(r"\[(\d{1,9}), ?(\d{1,9})\]", metadata.get("imgsz", ""))
    batch = re.fullmatch(r"\d{1,9}", metadata.get("batch", ""))
    noted = {} if image is None else {"height": image[1], "width": image[2]}
    noted |= {} if batch is None else {"batch": batch[0]}
    return {role: int(size) for role, size in noted.items() if int(size)}


def _role(spec: InputSpec, axis: int) -> str:
    """Return the role of a dimension, from its name, else from its position."""
    dim, rank = spec.shape[axis], len(spec.shape)
    name = dim if isinstance(dim, str) else ""
    is_signal = rank - axis == 1 and rank < 3 and spec.dtype is not None and spec.dtype.kind == "f"
    length = "signal" if is_signal else "length"
    by_name = next((role for role, pattern in _NAMES if pattern.search(name)), None)
    role = by_name or _image(spec).get(axis)
    if role is not None:
        return length if role == "length" else role
    first = spec.shape[0]
    state = rank == 3 and axis == 1 and isinstance(first, int) and isinstance(spec.shape[2], int)
    if state and (_STATE.search(spec.name) or int(first or 0) > 1):
        return "batch"
    return length if axis or (rank == 1 and length == "signal") else "batch"


def _image(spec: InputSpec) -> dict[int, str]:
    """Image axes of an input, channels first or last, with or without batch; empty if no image."""
    shape, free = spec.shape, [not isinstance(dim, int) for dim in spec.shape]
    if len(shape) == 4 and (shape[1] in _CHANNELS or all(free)):
        return {1: "channels", 2: "height", 3: "width"}
    if len(shape) == 4 and shape[3] in _CHANNELS:
        return {1: "height", 2: "width"}
    if len(shape) == 3 and shape[0] == 3 and all(free[1:]):
        return {1: "height", 2: "width"}
    return {0: "height", 1: "width"} if free == [True, True, False] and shape[2] == 3 else {}


def _proposals(
    inputs: Sequence[InputSpec], roles: Mapping[str, str], fixed: Sizes
) -> Iterator[Sizes]:
    """Candidate sizes for all open dimensions, the most common first."""
    samples = (s for s in inputs if len(s.shape) < 3 or s.shape[1] in (1, 2))  # otherwise features
    sound = {name for s in samples if _SOUND.search(s.name) for name in s.open.values()}
    tried: list[Sizes] = []
    for (height, width), (length, signal, second) in (
        *((side, _LENGTHS[0]) for side in _SIDES),
        *((_SIDES[0], each) for each in _LENGTHS[1:]),
    ):
        usual = {"batch": 1, "channels": 3, "height": height, "width": width}
        usual |= {"length": length, "signal": signal}
        sizes = {
            n: second if n in sound and r in ("length", "signal") else usual[r]
            for n, r in roles.items()
        }
        sizes |= fixed
        for name in (name for name in roles if name not in fixed):
            sizes[name] = total(name, sizes) or sizes[name]
        if sizes not in tried:
            tried.append(sizes)
            yield sizes
