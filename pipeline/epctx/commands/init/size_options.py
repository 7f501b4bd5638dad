"""Sizes of models that a user gives, on the command line or in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.text import did_you_mean
from epctx.verification.numbers.sizes import open_names

if TYPE_CHECKING:
    from epctx.graph.inputs import InputSpec


class SizeOptions(Struct, frozen=True, kw_only=True):
    """Sizes that the user gives, for all models that have such names.

    Attributes:
        dimensions: size by name of the dimension.
        shapes: whole shape by name of the input.
        files: files of inputs, of any model, whose arrays have the sizes.
        ask: asks the user for the size of a dimension, given its name and a proposed size; None:
            proposals are taken.
    """

    dimensions: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    ask: Callable[[str, int], int] | None = None

    def of(self, inputs: Sequence[InputSpec]) -> dict[str, int]:
        """Return the sizes of a model's open dimensions that the user gives.

        Raises:
            UsageError: a shape does not fit its input.
        """
        found = {n: size for n, size in self.dimensions.items() if n in open_names(inputs)}
        for spec in inputs:
            shape = self.shapes.get(spec.name)
            if shape is None:
                continue
            pairs = zip(spec.shape, shape, strict=False)
            if len(shape) != len(spec.shape) or any(
                isinstance(o, int) and o != s for o, s in pairs
            ):
                given = ",".join(map(str, shape))
                raise UsageError(
                    f"{given} does not fit the input '{spec.name}', which is {spec}",
                    where="--shape",
                    remedy=f"write --shape {spec.name}=… with all its sizes",
                    code=Code.COMMAND_LINE,
                )
            found |= {name: shape[axis] for axis, name in spec.open.items()}
        return found

    def refuse_unknown(self, models: Sequence[Sequence[InputSpec]]) -> None:
        """Refuse names that no model has.

        Args:
            models: the inputs of each.

        Raises:
            UsageError: there is one.
        """
        dimensions = {name for inputs in models for name in open_names(inputs)}
        names = {spec.name for inputs in models for spec in inputs}
        for key, what, given, known in (
            ("--dimension", "open dimension", self.dimensions, dimensions),
            ("--shape", "input", self.shapes, names),
        ):
            for name in given:
                if name not in known:
                    raise UsageError(
                        f'no model has an {what} "{name}"',
                        where=key,
                        remedy=did_you_mean(name, known),
                        code=Code.COMMAND_LINE,
                    )


NO_SIZES: Final = SizeOptions()
