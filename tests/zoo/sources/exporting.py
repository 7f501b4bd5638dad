"""torch modules written as ONNX by both of torch's exporters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.zoo.recipes import Recipe

EXPORTERS = {"dynamo": "torch.onnx (dynamo)", "script": "torch.onnx (TorchScript)"}
"""Name of an exporter in a recipe's name, and in the table."""
SYMBOLIC = "symbolic"
"""The older exporter, told that batch and sequence are of any size."""

Module = Any
"""A torch module; torch is imported where one is made."""

Maker = Callable[[], tuple[Module, tuple[Any, ...]]]
"""Makes a module of random weights and the inputs to export it with."""


def export(maker: Maker, exporter: str, folder: Path, opset: int | None = None) -> None:
    """Write what `maker` makes as `model.onnx`, of the exporter's own opset if none is given."""
    import torch

    torch.manual_seed(0)
    module, inputs = maker()
    names = [f"input{place}" for place in range(len(inputs))]
    axes = {name: _axes(value) for name, value in zip(names, inputs, strict=True)}
    with torch.no_grad():
        torch.onnx.export(
            module.eval(),
            inputs,
            str(folder / "model.onnx"),
            input_names=names,
            dynamic_axes=axes if exporter == SYMBOLIC else None,
            dynamo=exporter == "dynamo",
            opset_version=opset,
            external_data=False,
        )


def _axes(value: Any) -> dict[int, str]:
    """Names of the dimensions of any size: the batch, and the lengths of tokens."""
    is_tokens = value.ndim == 2 and not value.is_floating_point()
    return {0: "batch", 1: f"length{value.shape[1]}"} if is_tokens else {0: "batch"}


def exported(name: str, maker: Maker, exporters: tuple[str, ...]) -> Iterator[Recipe]:
    """A recipe of `maker` for each of `exporters`."""
    for exporter in exporters:
        make = partial(export, maker, exporter)
        source = EXPORTERS.get(exporter, "torch.onnx (TorchScript), symbolic sizes")
        yield Recipe(f"{name}.{exporter}", source, make)


def in_turn(makers: Mapping[str, Maker], both: frozenset[str]) -> Iterator[Recipe]:
    """A recipe of each maker, by one exporter in turn; of those in `both` by both, and symbolic."""
    for position, (name, maker) in enumerate(makers.items()):
        one = tuple(EXPORTERS)[position % 2]
        yield from exported(name, maker, (*EXPORTERS, SYMBOLIC) if name in both else (one,))


def network(parts: Mapping[str, Module], forward: Callable[..., Any]) -> Module:
    """A torch module of `parts` that computes `forward(parts, *inputs)`."""
    import torch

    def call(self: Module, *values: Any) -> Any:
        return forward(self.parts, *values)

    made: Module = type("Network", (torch.nn.Module,), {"forward": call})()
    made.parts = torch.nn.ModuleDict(parts)
    return made


def outputs_of(module: Module, names: tuple[str, ...]) -> Module:
    """`module` of transformers, called with inputs called `names`; only its tensors come out."""
    import torch

    def tensors(parts: Mapping[str, Module], *values: Any) -> tuple[Any, ...]:
        found = parts["inner"](**dict(zip(names, values, strict=True)), return_dict=True)
        return tuple(value for value in found.values() if isinstance(value, torch.Tensor))

    return network({"inner": module}, tensors)


def transformer(
    kind: str, settings: Mapping[str, Any], inputs: Callable[[Any], Mapping[str, Any]]
) -> tuple[Module, tuple[Any, ...]]:
    """A model of transformers, of type `kind` and of random weights, with its inputs.

    Args:
        kind: `model_type` of its configuration.
        settings: What is smaller than by default.
        inputs: Makes its inputs from its configuration.
    """
    import transformers

    config = transformers.AutoConfig.for_model(kind, **settings)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    config._attn_implementation = "eager"
    module = transformers.AutoModel.from_config(config)
    given = inputs(config)
    return outputs_of(module, tuple(given)), tuple(given.values())
