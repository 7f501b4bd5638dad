"""Choices for a starter manifest: EPs of this host, and sizes given by the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from epctx.commands.doctor.command import asking
from epctx.commands.doctor.probe import ProviderDiagnosis
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.parsing.schema import providers
from epctx.parsing.schema.providers import Advised
from epctx.providers import registry
from epctx.text import did_you_mean
from epctx.verification.numbers.sizes import open_names

if TYPE_CHECKING:
    from epctx.graph.inputs import InputSpec

REFERENCE = "ReferenceExecutionProvider"
"""The provider that needs no vendor SDK: a manifest for it builds anywhere."""


def installed() -> tuple[ProviderDiagnosis, ...]:
    """EPs that compile contexts and are installed here, the most useful first.

    Vendor EPs that compile on this host come first, then the reference EP, then EPs that are not
    ready here. Each EP is probed as in `epctx doctor`.
    """
    with asking(registry.names()) as answers:
        diagnoses = [each for each in answers if each.state != "not installed"]
    return tuple(sorted(diagnoses, key=_rank))


def proposed(diagnoses: Sequence[ProviderDiagnosis], options: Mapping[str, str]) -> str:
    """Return the default EP: the first that has all given options."""
    return next((each.name for each in diagnoses if _knows(each.name, options)), REFERENCE)


def left_out(provider: str, options: Mapping[str, str]) -> tuple[Advised, ...]:
    """Advised options of an EP for which neither the option nor an alternative was given."""
    schema = providers.find(provider)
    advised = schema.knowledge.advised if schema is not None else ()
    return tuple(each for each in advised if not any(name in options for name in each.options))


def names_of(provider: str, option: str) -> Mapping[str, str]:
    """Values of an option by the other names that the EP's schema has for them."""
    schema = providers.find(provider)
    return schema.choices(option) if schema is not None else {}


def _knows(provider: str, options: Mapping[str, str]) -> bool:
    schema = providers.find(provider)
    return schema is None or set(options) <= set(schema.properties)


def _rank(diagnosis: ProviderDiagnosis) -> int:
    if diagnosis.name == REFERENCE:
        return 1
    return 0 if diagnosis.state == "ready" and diagnosis.builds is not False else 2


class SizeOptions(Struct, frozen=True, kw_only=True):
    """Sizes that the user gives; each applies to all models that have the name.

    Attributes:
        dimensions: size by dimension name.
        shapes: whole shape by input name.
        files: input files for any of the models; their arrays determine sizes.
        ask: asks the user for a size, given the dimension's name and a proposed size; None to take
            the proposals.
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
        sizes = {n: size for n, size in self.dimensions.items() if n in open_names(inputs)}
        for spec in inputs:
            shape = self.shapes.get(spec.name)
            if shape is None:
                continue
            pairs = zip(spec.shape, shape, strict=False)
            if len(shape) != len(spec.shape) or any(
                isinstance(o, int) and o != s for o, s in pairs
            ):
                shape_text = ",".join(map(str, shape))
                raise UsageError(
                    f"{shape_text} does not fit the input '{spec.name}', which is {spec}",
                    where="--shape",
                    remedy=f"write --shape {spec.name}=… with all its sizes",
                    code=Code.COMMAND_LINE,
                )
            sizes |= {name: shape[axis] for axis, name in spec.open.items()}
        return sizes

    def refuse_unknown(self, models: Sequence[Sequence[InputSpec]]) -> None:
        """Refuse names that no model has.

        Args:
            models: inputs of each model.

        Raises:
            UsageError: no model has the name.
        """
        dimensions = {name for inputs in models for name in open_names(inputs)}
        names = {spec.name for inputs in models for spec in inputs}
        for key, what, user_names, model_names in (
            ("--dimension", "open dimension", self.dimensions, dimensions),
            ("--shape", "input", self.shapes, names),
        ):
            for name in user_names:
                if name not in model_names:
                    raise UsageError(
                        f'no model has an {what} "{name}"',
                        where=key,
                        remedy=did_you_mean(name, model_names),
                        code=Code.COMMAND_LINE,
                    )


NO_SIZES: Final = SizeOptions()
