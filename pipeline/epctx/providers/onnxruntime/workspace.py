"""The generating sessions of one session group, and their checked output.

The sessions of a sharing group compile into one context; so do the sessions of a model's parts if
the EP can share. Every session has `ep.share_ep_contexts`; the last also has
`ep.stop_share_ep_contexts` and writes the binary (real-eps.md section 6). All sessions live until
the workspace is closed, since OpenVINO otherwise does not write one binary, and since epctx checks
their numbers before it publishes anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Final

import onnx_ir as ir
import onnxruntime as ort
from msgspec import Struct
from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, ManifestError
from epctx.graph import epcontext, soundness
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition, Refusal, Replacement
from epctx.graph.partition import surgery
from epctx.providers.base import (
    BinaryGraph,
    Boundary,
    ContextBinary,
    PartitionedModel,
    Port,
    SessionGroupSpec,
    Trace,
    Workspace,
)
from epctx.providers.onnxruntime import exchange, session
from epctx.providers.onnxruntime.ep import OrtEp
from epctx.providers.onnxruntime.exchange import Binaries, Staging
from epctx.providers.onnxruntime.session import Generated

_UNKNOWN: Final = Port(name="")
_EXTERNAL_FROM: Final = 1 << 30
"""Bytes of weights. Above this total, ONNX Runtime writes the weights that stay on the CPU to a
file, since the model would approach protobuf's limit of 2 GB."""
_INSIDE_BELOW: Final = 2_000_000_000
"""Bytes of weights that fit into a model beside its graph."""


class Part(Struct, frozen=True, kw_only=True, eq=False):
    """A compiled partition.

    Attributes:
        stem: stem of the part's file names in the folder.
        generated: the part's live session.
        fragment: model that replaces the partition; None if the EP took none of its nodes.
    """

    model: str
    partition: Partition
    stem: str
    generated: Generated
    fragment: ir.Model | None


class OrtWorkspace(Workspace):
    """The context that the generating sessions of one session group share.

    Each EP of a group has a subfolder of its own in the group's folder, so that EPs do not
    interfere. It is the current folder of the process during a compile.

    Raises:
        ManifestError: the prefix cannot be applied.
    """

    def __init__(self, provider: OrtEp, spec: SessionGroupSpec) -> None:
        self._provider = provider
        self._spec = spec
        self._parts: list[Part] = []
        self._alone: dict[str, Part] = {}
        self._traces: dict[str, dict[str, Trace]] = {}
        self._sharing = False
        self._stopped = False
        self._closed = False
        if spec.node_name_prefix:
            self._refuse_prefix(several_graphs=spec.sharing, error=ManifestError)
        self._folder = spec.folder / provider.label
        self._make_folder()
        self._staging = Staging(folder=self._folder)
        self._binaries = Binaries(provider, self._folder, spec.first)
        self._host = ExitStack()
        self._host.enter_context(provider.compiling())

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        """Compile the partitions of one model in order, each in a session of its own.

        A partition of which the EP takes no node gets no replacement and stays on the CPU.

        Raises:
            CompileError: the EP failed, or took no node of a model that is not optional.
            EpctxError: ONNX Runtime's CPU EP also refuses the model that epctx wrote for the EP.
        """
        shares = self._shares(partitions)
        stems = self._stems(model.name, len(partitions))
        self._staging.inside = shares and self._provider.shares_outside
        for partition, stem in zip(partitions, stems, strict=True):
            self._staging.write(surgery.extract(model.model, partition), stem)
        last = model.name == self._spec.models[-1]
        with chdir(self._folder):
            stop = self._last_taken(stems) if shares and last else None
            for index, (partition, stem) in enumerate(zip(partitions, stems, strict=True)):
                joins = shares and (stop is None or index <= stop)
                self._generate(model.name, partition, stem, shares=joins, stop=stop == index)
        parts = self._parts[-len(partitions) :]
        self._require_one_embedded(parts)
        if not model.optional and all(part.fragment is None for part in parts):
            raise self._nothing_compiled(parts)
        if self._spec.node_name_prefix:
            self._place_prefix(parts)
        return [
            Replacement(partition=part.partition, fragment=part.fragment)
            for part in parts
            if part.fragment is not None
        ]

    def finish(self) -> Sequence[ContextBinary]:
        """Return the binaries after checks; a binary is read back if the EP's format is known.

        Raises:
            CompileError: a binary is missing, does not match the models, or is referred to by no
                model.
        """
        fragments = [part.fragment for part in self._parts if part.fragment is not None]
        if not fragments:
            return ()
        if self._sharing and not self._stopped:
            raise CompileError(
                f"no session wrote the shared context: {self._provider.name} took no node of "
                f"the last model, {self._spec.models[-1]}",
                remedy="take that model out of the sharing group, or put another model last",
                code=Code.NOTHING_COMPILED,
            )
        self._host.close()
        if self._spec.embed_mode == 1:
            self._binaries.check_embedded(fragments)
            return ()
        return self._binaries.collect(fragments, shared=self._sharing)

    def close(self) -> None:
        """Drop the sessions in reverse order; end the sharing if no session has ended it."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._sharing and not self._stopped:
                with chdir(self._folder):
                    self._provider.abandon()
            self._drop_alone()
            while self._parts:
                self._parts.pop()
        finally:
            self._host.close()

    def run(
        self, partition: Partition, feeds: Mapping[str, ort.OrtValue]
    ) -> Mapping[str, ort.OrtValue]:
        """Run the generating session of a partition; inputs and outputs by name.

        Raises:
            CompileError: the session cannot run what it compiled.
        """
        part = next(part for part in self._parts if part.partition is partition)
        live = self._alone.get(part.stem, part).generated.session
        try:
            names = [output.name for output in live.get_outputs()]
            values = live.run_with_ort_values(names, dict(feeds))
        except Exception as error:  # onnxruntime's errors have no common class
            raise CompileError(
                f"{self._provider.name} cannot run what it compiled",
                model=part.model,
                why=" ".join(str(error).split())[:600],
                remedy="change the provider's options, or keep the nodes that it cannot run "
                "off the EP with `partition: {exclude: {nodes: [...]}}`",
            ) from error
        return dict(zip(names, values, strict=True))

    def cannot_run(self) -> str | None:
        """Return why the generating sessions cannot run here; None if they can."""
        return self._provider.cannot_run()

    def boundaries(self, model: str) -> Sequence[Boundary]:
        """Return the EPContext nodes of a model as the EP wrote them, with the sessions' types and
        shapes.
        """
        return [
            boundary
            for part in (self._alone.values() or self._parts)
            if part.model == model and part.fragment is not None
            for boundary in _boundaries(part.generated.session, part.fragment)
        ]

    def variants(self) -> Sequence[str]:
        """Return the devices of a file for several devices, in words; empty if a file is for one
        device.
        """
        return tuple(self._provider.variants())

    def choose(self, variant: str) -> str | None:
        """Compile all parts again for one device alone; `run` then uses these sessions.

        Returns:
            How the graphs in the files for that device differ; None if no difference is visible.

        Raises:
            CompileError: the EP failed, or took no node.
        """
        self._drop_alone()
        provider = self._provider.variants()[variant]
        folder = Path(f"alone_{self.variants().index(variant)}")
        alone: list[BinaryGraph] = []
        with chdir(self._folder), provider.compiling():
            for part in self._parts:
                if part.fragment is not None:
                    self._alone[part.stem] = _alone(part, provider, self._spec, folder / part.stem)
                    for binary in sorted((folder / part.stem).glob("*.bin")):
                        alone.extend(provider.graphs(binary)[variant])
        joint = [graph for each in self._binaries.graphs for graph in each[variant]]
        return None if alone == joint else _difference(joint, alone)

    def _drop_alone(self) -> None:
        while self._alone:
            self._alone.popitem()

    def left_out(self, model: str) -> Mapping[ir.Node, str | Refusal]:
        """Return the nodes of a model's partitions that stayed on the CPU, with reasons where
        known.

        May ask the EP once more with a verbose log; nothing is compiled.
        """
        reasons: dict[ir.Node, str | Refusal] = {}
        for part in self._parts:
            if part.model == model:
                reasons.update(self._left_out(part))
        return reasons

    def traces(self, model: str) -> Mapping[str, Trace]:
        """Return the traces of a model's parts by their stems."""
        return self._traces.get(model, {})

    def _left_out(self, part: Part) -> Mapping[ir.Node, str | Refusal]:
        nodes = part.partition.nodes
        left_nodes = nodes if part.fragment is None else exchange.left_on_cpu(part.fragment, nodes)
        reason_of = {node: self._provider.why_left(node) for node in left_nodes}
        if None not in reason_of.values():
            return {node: why or "" for node, why in reason_of.items()}
        with chdir(self._folder):
            log = session.ask_verbosely(f"{part.stem}.onnx", self._provider)
        reasons = self._provider.reasons(log)
        if sum(not node.name for node in left_nodes) > 1:
            reasons = {
                name: why for name, why in reasons.items() if name
            }  # an empty name is ambiguous
        silent = f"{self._provider.name} did not take it, and does not say why"
        return {
            node: reasons.get(node.name or "", why or silent) for node, why in reason_of.items()
        }

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True)
        except FileExistsError as error:
            raise EpctxError(
                f"the folder for {self._provider.name} is not empty",
                file=str(self._folder),
                why="new models would be bound to a context binary of an earlier build",
                remedy="report it as a bug of epctx",
            ) from error

    def _shares(self, partitions: Sequence[Partition]) -> bool:
        if self._spec.embed_mode == 1:
            return False
        if self._spec.sharing:
            return True
        # If sharing needs the weights inside the model, parts too large for that get a binary each.
        largest = max(map(_weight, partitions), default=0)
        fits = not self._provider.shares_outside or largest < _INSIDE_BELOW
        return len(partitions) > 1 and self._provider.parts_share and fits

    def _stems(self, model: str, parts: int) -> list[str]:
        stem = f"{self._spec.node_name_prefix}{model}"
        return [stem, *(f"{stem}_{index}" for index in range(1, parts))]

    def _last_taken(self, stems: Sequence[str]) -> int:
        """Return the index of the last part of which the EP takes a node: only that session can
        stop sharing.
        """
        for index in range(len(stems) - 1, 0, -1):
            if session.needs_compilation(f"{stems[index]}.onnx", self._provider):
                return index
        return 0

    def _generate(
        self, model: str, partition: Partition, stem: str, *, shares: bool, stop: bool
    ) -> None:
        entries = dict(self._spec.session_options)
        if shares:
            entries["ep.share_ep_contexts"] = "1"
            self._sharing = True
        if stop:
            entries["ep.stop_share_ep_contexts"] = "1"
        try:
            generated = session.generate(
                f"{stem}.onnx",
                self._provider,
                embed_mode=self._spec.embed_mode,
                entries=entries,
                external=f"{stem}_ctx.weights" if _weight(partition) > _EXTERNAL_FROM else None,
            )
        except CompileError as error:
            refusal = soundness.refusal_of_file(Path(f"{stem}.onnx"), Path())
            if refusal is not None and soundness.unknown_op(refusal) is None:
                what = f"ONNX Runtime refuses the model that epctx wrote for {self._provider.name}"
                why = soundness.words(refusal)
                raise EpctxError(
                    what, model=model, why=why, remedy="report it as a bug of epctx"
                ) from error
            error.model = model
            remedy = self._provider.failed_remedy(error.why or "")
            error.remedy = remedy or _shape_remedy(partition) or error.remedy
            raise
        if (trace := self._provider.take_trace(partition.nodes)) is not None:
            self._traces.setdefault(model, {})[stem] = trace
        fragment = None
        if generated.model is not None:
            fragment = exchange.read_fragment(
                generated.model, partition, self._provider.sources, provider=self._provider.name
            )
            if exchange.context_nodes(fragment):
                self._binaries.name(fragment)
                if epcontext.OVERRIDES in self._provider.extra_attributes:
                    for node in exchange.context_nodes(fragment):
                        node.meta[epcontext.ENDS] = epcontext.ends(node)
            else:
                fragment = None
        self._stopped = self._stopped or (stop and fragment is not None)
        self._parts.append(
            Part(
                model=model, partition=partition, stem=stem, generated=generated, fragment=fragment
            )
        )

    def _require_one_embedded(self, parts: Sequence[Part]) -> None:
        """Refuse several embedded contexts in a model if the EP loads only one."""
        compiled = sum(part.fragment is not None for part in parts)
        if self._spec.embed_mode == 1 and compiled > 1 and not self._provider.embeds_parts:
            raise CompileError(
                f"{self._provider.name} loads no model with several embedded contexts",
                model=parts[0].model,
                why=f"the nodes kept off it cut the model into {compiled} parts, each with a "
                "context of its own",
                remedy="set `embed_mode: 0`, or keep no nodes off it in the middle of the model",
            )

    def _nothing_compiled(self, parts: Sequence[Part]) -> CompileError:
        logged = [line for part in parts for line in part.generated.log.errors()]
        if not logged:
            kinds: dict[str, str] = {}
            for part in parts:
                for node, why in self._left_out(part).items():
                    kinds.setdefault(node.op_type, str(why))
            logged = [f"{op_type}: {why}" for op_type, why in kinds.items()]
        logged += self._unable(parts)
        fed = {str(v.name) for p in parts for v in p.partition.inputs if v.is_initializer()}
        remedy = f"make initializers constant, not inputs: {', '.join(sorted(fed))}; or "
        return CompileError(
            f"{self._provider.name} compiled nothing",
            model=parts[0].model,
            why="; ".join(dict.fromkeys(logged)) or None,
            remedy=(remedy if fed else "") + self._provider.nothing_compiled_remedy(),
            code=Code.NOTHING_COMPILED,
        )

    def _unable(self, parts: Sequence[Part]) -> Iterator[str]:
        """Yield a sentence for each device for which the EP takes no node, even for that device
        alone.
        """
        with chdir(self._folder):
            for name, alone in self._provider.variants().items():
                if not any(session.needs_compilation(f"{p.stem}.onnx", alone) for p in parts):
                    yield f"it takes no node for {name} alone either"

    def _refuse_prefix(self, *, several_graphs: bool, error: type[EpctxError]) -> None:
        why = self._provider.refuse_prefix(several_graphs=several_graphs)
        if why is not None:
            raise error(
                f"node_name_prefix {self._spec.node_name_prefix!r} cannot be applied",
                where=f"models {', '.join(self._spec.models)}",
                why=why,
                remedy="leave node_name_prefix out of this model group, or build the models in "
                "groups of their own",
            )

    def _place_prefix(self, parts: Sequence[Part]) -> None:
        prefix = self._spec.node_name_prefix
        fragments = [part.fragment for part in parts if part.fragment is not None]
        nodes = [node for fragment in fragments for node in exchange.context_nodes(fragment)]
        self._refuse_prefix(several_graphs=len(nodes) > 1, error=CompileError)
        for node in nodes:
            self._provider.place_prefix(node, prefix)


def _alone(part: Part, provider: OrtEp, spec: SessionGroupSpec, into: Path) -> Part:
    """Compile a part again for one device alone.

    Raises:
        CompileError: the EP failed, or took no node.
    """
    generated = session.generate(
        f"{part.stem}.onnx", provider, embed_mode=0, entries=spec.session_options, into=into
    )
    if generated.model is None:
        raise CompileError(
            f"{provider.name} compiled nothing for one device alone",
            model=part.model,
            remedy="build it for this device alone",
            code=Code.NOTHING_COMPILED,
        )
    sources = provider.sources
    fragment = exchange.read_fragment(
        generated.model, part.partition, sources, provider=provider.name
    )
    return replace(part, generated=generated, fragment=fragment)


def _difference(joint: Sequence[BinaryGraph], alone: Sequence[BinaryGraph]) -> str:
    """Describe the first difference between graphs."""
    for there, here in zip(joint, alone, strict=False):
        if there != here:
            return f"graph {there.name} is {there}, alone it is {here}"
    return f"there are {len(joint)} graphs, alone {len(alone)}"


def _boundaries(live: ort.InferenceSession, fragment: ir.Model) -> Iterator[Boundary]:
    ports_by_name = {
        arg.name: Port(
            name=arg.name,
            type=arg.type,
            shape=tuple(dim if isinstance(dim, int) else None for dim in arg.shape),
        )
        for arg in (*live.get_inputs(), *live.get_outputs())
    }
    for node in exchange.context_nodes(fragment):
        context = EPContextNode.from_ir(node)
        ports = [
            [
                replace(ports_by_name.get(n, _UNKNOWN), name=context.own_names.get(n, n))
                for n in names
            ]
            for names in (context.inputs, context.outputs)
        ]
        yield Boundary(node=context.name, inputs=tuple(ports[0]), outputs=tuple(ports[1]))


def _weight(partition: Partition) -> int:
    """Return the bytes of a partition's initializers."""
    return sum(v.const_value.nbytes for v in partition.initializers if v.const_value is not None)


def _shape_remedy(partition: Partition) -> str | None:
    """Return a remedy for values of unknown shape, which OpenVINO treats as scalars and
    fails on.
    """
    unknown = [v.name for node in partition.nodes for v in node.outputs if v.shape is None]
    if not unknown:
        return None
    return (
        f"{len(unknown)} value(s) have no known shape, the first is {unknown[0]!r}: add value_info "
        "for them to the model, or keep the nodes that use them off the EP with "
        "`partition: {exclude: {nodes: [...]}}`"
    )
