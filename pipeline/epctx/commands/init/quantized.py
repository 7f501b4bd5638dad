"""What a starter manifest says of quantizing its models, for NPUs that compute with integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.manifest import PRESETS

if TYPE_CHECKING:
    from epctx.graph.inputs import InputSpec

SAMPLES = "calib"
"""The folder beside the manifest that samples go into."""


def lines(models: Sequence[Path], manifest: Path, provider: str, *, asked: bool) -> Iterator[str]:
    """The lines of the group: `quantize` where it is asked for, else a comment where it helps.

    Raises:
        UsageError: it is asked for, and a model is not of float32.
        ModelError: a model cannot be read.
    """
    if asked:
        _refuse_others(models)
        yield "    quantize:"
        yield from _calibration(models, manifest)
    elif (
        PRESETS.get(provider) == "qnn"
        and not any(map(Path.is_dir, models))
        and all(_precision(each) == "float32" for each in models)
    ):
        yield (
            "    # quantize: {calibration: {random: true}}    # to integers: "
            "`epctx init --quantize` says how"
        )


def _calibration(models: Sequence[Path], manifest: Path) -> Iterator[str]:
    from epctx.graph import inputs
    from epctx.graph.serde import reader

    found = f"{{files: [{SAMPLES}/*.npz]}}"
    if any((manifest.parent / SAMPLES).glob("*.npz")):
        yield f"      calibration: {found}"
        return
    yield "      # Random samples try out whether it compiles. For real ranges write some hundred"
    yield f"      # inputs, as the model will get them, into {SAMPLES}/, a file each, by numpy:"
    for model in models:
        specs = inputs.specs(reader.read(model))
        given = ", ".join(f"{spec.name!r}: ..." for spec in specs)
        yield f"      #   savez('{SAMPLES}/0.npz', **{{{given}}})    # {_printable(specs)}"
    yield f"      # Then put `calibration: {found}` here, and run `epctx build`."
    yield "      calibration: {random: true}"


def _printable(specs: Sequence[InputSpec]) -> str:
    """Their types on one line, whatever their dimensions are called."""
    return repr(", ".join(map(str, specs)))[1:-1]


def _precision(model: Path) -> str:
    """Return float32 if all outputs have it, else the precision of the first other one."""
    from epctx.graph.serde import reader
    from epctx.verification.numbers.tolerances import precisions

    each = precisions(reader.read(model)).values()
    return next((word for word in each if word != "float32"), "float32")


def _refuse_others(models: Sequence[Path]) -> None:
    for model in models:
        if model.is_dir():
            what, remedy = "a folder of onnxruntime-genai", "its model builder quantizes: `-p int4`"
        elif (found := _precision(model)) != "float32":
            what, remedy = found, "leave --quantize away, or name its float32 model"
        else:
            continue
        raise UsageError(
            f"--quantize takes models of float32, and this is {what}",
            file=model.as_posix(),
            remedy=remedy,
            code=Code.COMMAND_LINE,
        )
