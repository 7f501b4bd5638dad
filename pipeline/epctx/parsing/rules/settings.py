"""Rules on a group's settings: passes, verification's inputs."""

from __future__ import annotations

from collections.abc import Iterator

from epctx.error_codes import Code
from epctx.graph.passes import registry
from epctx.parsing.document.problems import Problem, at, at_key, of_kind
from epctx.parsing.document.tree import Node, quoted
from epctx.parsing.rules.paths import Places
from epctx.text import did_you_mean

FILES = (".npz", ".pb")
"""What `verify.inputs.files` and `quantize.calibration.files` may be."""
_CALIBRATED = (
    *("activations", "weights", "per_channel", "symmetric"),
    *("method", "range_floor", "overrides"),
)
"""Keys of `quantize` that say nothing where nothing is calibrated."""


def check(group: Node, places: Places) -> Iterator[Problem]:
    """Every problem of this kind in a resolved group."""
    yield from of_kind(Code.NO_SUCH_PASS, _passes(group.get("optimize", "level")))
    inputs = group.get("verify", "inputs")
    if inputs is not None:
        yield from of_kind(Code.VERIFY_INPUTS, _ranges(inputs.get("ranges")))
        yield from of_kind(Code.VERIFY_INPUTS, _files(inputs.get("files"), places))
    quantize = group.get("quantize")
    if quantize is not None and quantize.kind == "mapping":
        yield from of_kind(Code.CALIBRATION, _quantize(quantize, places))


def _passes(level: Node | None) -> Iterator[Problem]:
    """Names of passes, where they are listed."""
    if level is None or not level.items:
        return

    known = (*registry.names(), *registry.LEVELS)
    for item in level.items:
        if item.string and item.string not in known:
            what = f"there is no pass {quoted(item.string)}"
            yield at(item, what, did_you_mean(item.string, known))


def _ranges(ranges: Node | None) -> Iterator[Problem]:
    for node in ranges.mapping.values() if ranges is not None else ():
        bounds = [item.value for item in node.items if isinstance(item.value, int | float)]
        if len(bounds) == 2 and bounds[0] > bounds[1]:
            low, high = (item.text for item in node.items)
            yield at(node, f"starts at {low} and ends below, at {high}", f"write [{high}, {low}]")


def _quantize(quantize: Node, places: Places) -> Iterator[Problem]:
    """What `quantize` says against itself, and its files."""
    calibration = quantize.get("calibration")
    weight_only = quantize.get("weight_only")
    files, random = quantize.get("calibration", "files"), quantize.get("calibration", "random")
    generated = random is not None and random.value is True
    alone = weight_only is not None and weight_only.kind == "mapping" and calibration is None
    if alone:
        for key in _CALIBRATED:
            if key in quantize.mapping and quantize.mapping[key].kind != "null":
                what = "has no effect: without samples only weights are quantized, in blocks"
                yield at_key(quantize, key, what, f"remove {key}, or give `calibration`")
    elif random is not None and generated and files is not None and files.items:
        what = "samples are generated, and there are files"
        yield at(random, what, "remove `random`, or `files`")
    elif not generated and (files is None or not files.items):
        what = "there are no samples to calibrate with"
        remedy = (
            "name files of real inputs: `calibration: {files: [calib/*.npz]}`; to try it out "
            "without, set `calibration: {random: true}`"
        )
        yield at(calibration or quantize, what, remedy)
    yield from _files(files, places)
    weights = quantize.get("weights")
    if weights is not None and weights.value == "uint8" and _are_int8(quantize.get("activations")):
        what = "is uint8, and activations are int8: onnxruntime has no such pair"
        yield at(weights, what, "write int8, or leave one of them out")
    overrides = quantize.get("overrides")
    for override in overrides.mapping.values() if overrides is not None else ():
        yield from _ranges(override)


def _are_int8(activations: Node | None) -> bool:
    return activations is not None and activations.value == "int8"


def _files(files: Node | None, places: Places) -> Iterator[Problem]:
    for node in files.items if files is not None else ():
        if node.string:
            yield from _file(node, node.string, places)


def _file(node: Node, pattern: str, places: Places) -> Iterator[Problem]:
    wrong = places.problem(pattern)
    if wrong is not None:
        yield at(node, *wrong)
        return
    found = places.files(pattern)
    if not found and not places.partial:
        yield at(node, "matches no file", "check the pattern; it is relative to the manifest")
    for path in found:
        if path.suffix.lower() not in FILES:
            what = f"{quoted(path.name)} is no .npz or .pb file"
            yield at(
                node, what, "save the inputs with numpy.savez, or as ONNX TensorProto .pb files"
            )
            return
        outside = None if places.allow_outside else places.outside(path, "copy the file inside")
        if outside is not None:
            yield at(node, *outside)
            return
