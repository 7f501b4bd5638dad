"""Running a model step by step: onnxruntime sessions and kernels, values passed in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnxruntime as ort
from msgspec import Struct

from epctx.errors import InvalidGraph
from epctx.providers.base import Kernel
from epctx.runtime.arguments import NodeArg
from epctx.runtime.values import Value, to_value


class Runner(Protocol):
    """One step, bound to what runs it. Called from many threads."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values it needs."""
        ...

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the values it makes."""
        ...

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """What it makes, from `values`, which have all it reads but inputs left out."""
        ...


class SessionRunner:
    """A step that onnxruntime runs."""

    def __init__(self, session: ort.InferenceSession) -> None:
        outputs = session.get_outputs()
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self.session = session
        self.reads = tuple(dict.fromkeys(arg.name for arg in inputs))
        self.makes = tuple(arg.name for arg in outputs)
        self._tensors = all(_is_numeric_tensor(arg.type) for arg in outputs)

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """Stay with OrtValues where everything is one; strings and sequences go through Python."""
        feeds = {name: values[name] for name in self.reads if name in values}
        if self._tensors and all(isinstance(v, ort.OrtValue) for v in feeds.values()):
            made: Sequence[Value] = self.session.run_with_ort_values(self.makes, feeds, run_options)
            return made
        return [to_value(v) for v in self.session.run(self.makes, feeds, run_options)]


class KernelRunner(Struct, frozen=True, kw_only=True):
    """A step that an EP's kernel runs.

    Attributes:
        node: the EPContext node's name.
        kernel: what its EP loaded for it.
        reads: the node's inputs.
        makes: the node's outputs.
        promised: what the model says of the outputs, by name, where it does.
    """

    node: str
    kernel: Kernel
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    promised: Mapping[str, NodeArg]

    def run(
        self, values: Mapping[str, Value], run_options: ort.RunOptions | None
    ) -> Sequence[Value]:
        """What the kernel makes, of the types and shapes that the model promises.

        Raises:
            InvalidGraph: it makes something else.
        """
        made = self.kernel.compute([values[name] for name in self.reads])
        for name, value in zip(self.makes, made, strict=True):
            why = self.promised[name].misfit(value) if name in self.promised else None
            if why is not None:
                raise InvalidGraph(
                    f"output {name!r} is not what the model says",
                    node=self.node,
                    why=why,
                    remedy="correct what the source model declares of this output, "
                    "and build it again",
                )
        return made


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A model's steps in the order in which they run.

    Attributes:
        inputs: the model's, those with an initializer of their own too.
        overridable: names of the inputs that have one.
        outputs: the model's.
        constants: initializers that kernels read or that are outputs, by name.
        runners: the steps.
    """

    inputs: tuple[NodeArg, ...]
    overridable: frozenset[str]
    outputs: tuple[NodeArg, ...]
    constants: Mapping[str, Value]
    runners: tuple[Runner, ...]
    _last_use: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for index, runner in enumerate(self.runners):
            self._last_use.update(dict.fromkeys(runner.reads, index))
        self._last_use.update(dict.fromkeys((a.name for a in self.outputs), len(self.runners)))

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Value],
        run_options: ort.RunOptions | None,
    ) -> list[Value]:
        """The outputs of these names. A value is let go after its last use."""
        values: dict[str, Value] = {**self.constants, **feeds}
        for index, runner in enumerate(self.runners):
            values.update(zip(runner.makes, runner.run(values, run_options), strict=True))
            for name in (*runner.reads, *runner.makes):
                if self._last_use.get(name, -1) <= index:
                    values.pop(name, None)
        return [values[name] for name in names]


def _is_numeric_tensor(type_: str) -> bool:
    return type_.startswith("tensor(") and type_ != "tensor(string)"
