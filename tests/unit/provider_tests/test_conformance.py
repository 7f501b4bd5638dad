"""The conformance class finds providers that do not do what they owe."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from msgspec.structs import replace

from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition, Replacement
from epctx.provider_tests import ExecutionProviderConformance
from epctx.providers.base import (
    Capability,
    ContextBinary,
    ExecutionProvider,
    Fingerprint,
    Kernel,
    PartitionedModel,
    SessionGroupSpec,
    SharedContexts,
)
from epctx.providers.reference import ReferenceExecutionProvider, reader
from epctx.providers.reference.provider import ReferenceExecutionProvider as Reference
from epctx.providers.reference.workspace import ReferenceWorkspace

COUNTER = itertools.count()


class Sabotaged(Reference):
    """A reference EP whose workspace is another one."""

    workspace: type[ReferenceWorkspace] = ReferenceWorkspace

    def open_workspace(self, session_group: SessionGroupSpec) -> ReferenceWorkspace:
        return self.workspace(self.options, session_group)


class NoLabel(Sabotaged):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.label = "a/b"


class Unheard(Sabotaged):
    """It can foresee what it leaves, and does not say so."""

    def foresee(self, model: ir.Model, partition: Partition) -> dict[ir.Node, str]:
        return {}


class Restless(Sabotaged):
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(toolchain={"run": str(next(COUNTER))})


class Greedy(Sabotaged):
    def get_capability(self, model: ir.Model) -> Capability:
        found = super().get_capability(model)
        return Capability(nodes=[*found.nodes, *found.nodes])


class Meddling(Sabotaged):
    def get_capability(self, model: ir.Model) -> Capability:
        model.graph.initializers.clear()
        return super().get_capability(model)


class ForeignSource(Sabotaged):
    class workspace(ReferenceWorkspace):
        def compile(
            self, model: PartitionedModel, partitions: Sequence[Partition]
        ) -> Sequence[Replacement]:
            made = super().compile(model, partitions)
            for replacement in made:
                for node in replacement.fragment.graph:
                    node.attributes["source"] = ir.AttrString("source", "other")
            return made


class Untyped(Sabotaged):
    class workspace(ReferenceWorkspace):
        def compile(
            self, model: PartitionedModel, partitions: Sequence[Partition]
        ) -> Sequence[Replacement]:
            made = super().compile(model, partitions)
            for replacement in made:
                replacement.fragment.graph.outputs[0].shape = None
            return made


class Forgetful(Sabotaged):
    class workspace(ReferenceWorkspace):
        def finish(self) -> Sequence[ContextBinary]:
            return ()


class Misnamed(Sabotaged):
    class workspace(ReferenceWorkspace):
        def finish(self) -> Sequence[ContextBinary]:
            return [replace(binary, name="context.bin") for binary in super().finish()]


class OneShot(Sabotaged):
    class workspace(ReferenceWorkspace):
        def finish(self) -> Sequence[ContextBinary]:
            def once(chunks: Any) -> Any:
                iterator = chunks()
                return lambda: iterator

            return [replace(b, chunks=once(b.chunks)) for b in super().finish()]


class Random(Sabotaged):
    class workspace(ReferenceWorkspace):
        def __init__(self, options: Any, group: SessionGroupSpec) -> None:
            super().__init__(replace(options, notes=str(next(COUNTER))), group)


class Prefixless(Sabotaged):
    class workspace(ReferenceWorkspace):
        def __init__(self, options: Any, group: SessionGroupSpec) -> None:
            super().__init__(options, replace(group, node_name_prefix=""))


LEFT: list[Any] = []


class Leaky(Sabotaged):
    """Its context is a singleton that `close` does not clear."""

    class workspace(ReferenceWorkspace):
        def __init__(self, options: Any, group: SessionGroupSpec) -> None:
            super().__init__(options, group)
            self._writer.graphs = LEFT

        def close(self) -> None:
            pass


class Trusting(Sabotaged):
    """It does not look at checksums."""

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_hash", lambda view: FakeDigest())
            return super().load(nodes, folder, shared)


class FakeDigest:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Unsharing(Sabotaged):
    """It always reads, and leaves nothing for others."""

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        return super().load(nodes, folder, None)


class Hoarding(Sabotaged):
    """It leaves graphs that it has taken."""

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        before = dict(getattr(shared, "graphs", {}))
        made = super().load(nodes, folder, shared)
        getattr(shared, "graphs", {}).update(before)
        return made


class Inexact(Sabotaged):
    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        return [Off(kernel) for kernel in super().load(nodes, folder, shared)]


class Off:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def compute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        import onnxruntime as ort

        return [
            ort.OrtValue.ortvalue_from_numpy(v.numpy() * 1.001)
            for v in self._kernel.compute(inputs)
        ]


class Crashing(Sabotaged):
    """What is wrong with a binary is a ValueError."""

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        try:
            return super().load(nodes, folder, shared)
        except Exception as error:
            raise ValueError("bad binary") from error


CASES: list[tuple[type[Sabotaged], str]] = [
    (NoLabel, "test_it_names_itself"),
    (Unheard, "test_its_flags_and_methods_agree"),
    (Restless, "test_its_fingerprint_is_the_same_each_time"),
    (Greedy, "test_it_takes_nodes_of_the_main_graph"),
    (Meddling, "test_it_takes_nodes_of_the_main_graph"),
    (ForeignSource, "test_its_nodes_say_what_they_are"),
    (Untyped, "test_each_partition_is_replaced"),
    (Forgetful, "test_embed_mode_0_makes_one_binary"),
    (Forgetful, "test_n_models_make_n_plus_1_files"),
    (Misnamed, "test_embed_mode_0_makes_one_binary"),
    (OneShot, "test_a_binary_can_be_streamed_again"),
    (Random, "test_fresh_workspaces_make_the_same_bytes"),
    (Prefixless, "test_the_prefix_is_put_before_names"),
    (Leaky, "test_a_closed_workspace_is_empty"),
    (Trusting, "test_a_corrupt_binary_is_an_invalid_graph"),
    (Crashing, "test_a_corrupt_binary_is_an_invalid_graph"),
    (Crashing, "test_a_path_that_leads_to_no_binary_is_an_invalid_graph"),
    (Unsharing, "test_a_second_session_takes_its_graph_and_reads_nothing"),
    (Hoarding, "test_a_second_session_takes_its_graph_and_reads_nothing"),
    (Inexact, "test_numbers_are_those_of_the_source"),
    (Inexact, "test_sessions_that_share_compute_what_their_sources_do"),
]
ARGUMENTS: dict[str, dict[str, object]] = {
    "test_a_corrupt_binary_is_an_invalid_graph": {"how": "bits flipped in the middle"},
    "test_a_path_that_leads_to_no_binary_is_an_invalid_graph": {"path": "absent.bin"},
    "test_a_second_session_takes_its_graph_and_reads_nothing": {"order": "ab"},
    "test_numbers_are_those_of_the_source": {"embed": False},
}


def run(kind: type[Reference], test: str, folder: Path) -> None:
    class Suite(ExecutionProviderConformance):
        def create(self) -> ExecutionProvider:
            return kind({})

    suite = Suite()
    method = getattr(suite, test)
    wanted = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    given = {"tmp_path": folder, **ARGUMENTS.get(test, {})}
    for name in ("provider", "sharing", "loading"):
        given[name] = suite.create()
    method(**{name: given[name] for name in wanted})


@pytest.mark.parametrize(("kind", "test"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_a_fault_is_found(kind: type[Sabotaged], test: str, tmp_path: Path) -> None:
    LEFT.clear()
    (tmp_path / "sound").mkdir()
    run(ReferenceExecutionProvider, test, tmp_path / "sound")
    (tmp_path / "broken").mkdir()
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(kind, test, tmp_path / "broken")
