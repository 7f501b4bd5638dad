"""The conformance class: all tests of an execution provider in one class."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from msgspec.structs import replace

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
from epctx.graph.serde import canonical
from epctx.provider_tests.building import (
    Array,
    Built,
    build,
    expected,
    feed,
    group,
    model,
    open_session,
    partition,
)
from epctx.providers.base import ExecutionProvider, Kernel, SharedContexts


def load(
    provider: ExecutionProvider, nodes: Sequence[EPContextNode], folder: Path | None
) -> list[Kernel]:
    """Load nodes without sharing."""
    return list(provider.load(nodes, folder, None))


def refer_to(built: Built, binary: str) -> None:
    """Fail unless every model's primary nodes refer to this binary."""
    for nodes in built.nodes.values():
        assert {node.context_path for node in nodes if node.main_context} == {binary}


def with_content(node: EPContextNode, change: Callable[[bytes], bytes]) -> EPContextNode:
    """Return a copy of the node with another `ep_cache_context`."""
    return replace(node, ep_cache_context=change(node.ep_cache_context or b""))


CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut to half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "with something after it": lambda data: data + bytes(64),
    "zeros": lambda data: bytes(len(data)),
    "text": lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    "random": lambda data: np.random.default_rng(0).bytes(len(data)),
    "first byte flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "middle zeroed": lambda data: _patched(data, len(data) // 2, 64, lambda old: bytes(len(old))),
    "bits flipped in the middle": lambda data: _patched(
        data, len(data) // 2, 64, lambda old: bytes(byte ^ 0x55 for byte in old)
    ),
    "last byte flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}
"""Damage that happens to files on their way to a device."""


def _patched(data: bytes, at: int, size: int, change: Callable[[bytes], bytes]) -> bytes:
    return data[:at] + change(data[at : at + size]) + data[at + size :]


class ExecutionProviderConformance:
    """Tests of an execution provider, which a subclass makes in `create`.

    Tests of features that the provider declares unsupported are skipped.

    Attributes:
        max_rel: largest error against ONNX Runtime's CPU EP, relative to the output's largest
            magnitude. Raise it for hardware that computes in another precision.
    """

    max_rel: float = 1e-5

    def create(self) -> ExecutionProvider:
        """Make a provider, as `epctx.execution_providers` does; a new object each time."""
        raise NotImplementedError("implement `create`, which makes the provider")

    @pytest.fixture
    def provider(self) -> ExecutionProvider:
        """A provider for one test."""
        return self.create()

    @pytest.fixture
    def loading(self, provider: ExecutionProvider) -> ExecutionProvider:
        """A provider that loads its nodes itself."""
        if provider.native:
            pytest.skip("onnxruntime itself runs its nodes")
        return provider

    @pytest.fixture
    def sharing(self, provider: ExecutionProvider) -> ExecutionProvider:
        """A provider that puts several models into one context."""
        if not provider.can_share:
            pytest.skip("it does not share contexts")
        return provider

    def close_to(self, output: Array, reference: Array) -> None:
        """Fail unless the numbers are equal within `max_rel`."""
        assert output.dtype == reference.dtype and output.shape == reference.shape
        assert output.any() or not reference.any(), (
            "all values are zero, but the expected values are not"
        )
        error = np.abs(output.astype(np.float64) - reference.astype(np.float64)).max()
        assert error <= self.max_rel * np.abs(reference).max()

    # Names, fingerprint and capability.

    def test_it_names_itself(self, provider: ExecutionProvider) -> None:
        """`name`, `label` and `sources` are valid in file names and nodes."""
        assert provider.name
        assert re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.+-]*[A-Za-z0-9_+-])?", provider.label)
        assert provider.sources and all(provider.sources)
        flags = (provider.isolated, provider.can_share, provider.native)
        assert all(isinstance(flag, bool) for flag in flags)

    def test_its_flags_and_methods_agree(self, provider: ExecutionProvider) -> None:
        """A method that belongs to a flag is implemented if and only if the flag is set."""
        flags = {"native": "add_to", "foresees": "foresee", "reads_one_binary": "merge_binaries"}
        for flag, method in flags.items():
            own = getattr(type(provider), method) is not getattr(ExecutionProvider, method)
            assert own == getattr(provider, flag), f"`{flag}` and `{method}` do not agree"

    def test_its_fingerprint_is_the_same_each_time(self, provider: ExecutionProvider) -> None:
        """A fingerprint consists of strings, and two providers with the same options have equal
        fingerprints.
        """
        first, second = provider.fingerprint(), self.create().fingerprint()
        assert first.toolchain and first == second
        json.dumps([dict(first.toolchain), dict(first.host)])

    def test_it_is_made_without_side_effects(self, tmp_path: Path) -> None:
        """Making a provider and asking for its fingerprint writes nothing to the current folder."""
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            self.create().fingerprint()
        finally:
            os.chdir(before)
        assert not list(tmp_path.iterdir())

    def test_it_takes_nodes_of_the_main_graph(self, provider: ExecutionProvider) -> None:
        """`get_capability` answers with the model's own nodes, each once, and changes nothing."""
        proto = ir.serde.deserialize_model(model())
        before = canonical.serialize(proto)
        capability = provider.get_capability(proto)
        nodes = list(capability.nodes)
        assert {"MatMul", "Add", "Relu"} <= {node.op_type for node in nodes}
        assert all(node.graph is proto.graph for node in nodes)
        assert len(set(nodes)) == len(nodes)
        assert not set(nodes) & set(capability.declined)
        assert all(capability.declined.values()), "a node is declined without a reason"
        assert canonical.serialize(proto) == before

    # Replacements, nodes, binaries, embed modes, prefix and determinism.

    def test_each_partition_is_replaced(self, provider: ExecutionProvider, tmp_path: Path) -> None:
        """Partitions get one replacement each, with their inputs and outputs, typed."""
        part = partition(provider, "m", model(barriers=1), split=True)
        workspace = provider.open_workspace(group(["m"], tmp_path, embed=False, prefix=""))
        try:
            replaced = workspace.compile(part, part.partitions)
            assert [r.partition for r in replaced] == list(part.partitions)
            for replacement in replaced:
                graph, own = replacement.fragment.graph, replacement.partition
                assert {v.name for v in graph.inputs} <= {v.name for v in own.inputs}
                assert {v.name for v in graph.outputs} == {v.name for v in own.outputs}
                assert all(v.type is not None and v.shape is not None for v in graph.outputs)
        finally:
            workspace.close()

    def test_its_nodes_say_what_they_are(self, provider: ExecutionProvider, tmp_path: Path) -> None:
        """The provider accepts each `source`, names are unique, and the first node is primary."""
        built = build(provider, tmp_path, {"m": model(barriers=2)}, split=True)
        nodes = built.nodes["m"]
        assert len(nodes) >= 3, "the partitions were not kept apart"
        assert {node.source for node in nodes} <= provider.sources
        assert len({node.name for node in nodes}) == len(nodes)
        assert nodes[0].main_context == 1
        for node in nodes:
            assert node.embed_mode == 0
            assert node.main_context == 1 or not node.ep_cache_context

    def test_embed_mode_0_makes_one_binary(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """One `[model]_[ep].bin` is beside the model, for any number of partitions."""
        built = build(provider, tmp_path, {"m": model(barriers=2)}, split=True)
        assert built.binaries == (f"m_{provider.label}.bin",)
        refer_to(built, built.binaries[0])
        assert sorted(built.contents()) == sorted(["m_ctx.onnx", *built.binaries])

    def test_embed_mode_1_makes_none(self, provider: ExecutionProvider, tmp_path: Path) -> None:
        """The first node carries the payload."""
        built = build(provider, tmp_path, {"m": model(barriers=1)}, embed=True, split=True)
        assert not built.binaries and list(built.contents()) == ["m_ctx.onnx"]
        nodes = built.nodes["m"]
        assert all(node.embed_mode == 1 for node in nodes)
        assert nodes[0].main_context == 1 and nodes[0].ep_cache_context

    def test_the_prefix_is_put_before_names(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """The prefix is put before the node's name and `partition_name`, if the EP can
        choose them.
        """
        built = build(provider, tmp_path, {"m": model()}, prefix="pre_")
        for node in built.nodes["m"]:
            names = {"name": node.name, "partition_name": node.partition_name or ""}
            for place in names.keys() & provider.prefixed:
                assert names[place].startswith("pre_"), f"its {place} has no prefix"

    def test_an_empty_workspace_has_no_binary(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """Without a compile nothing is written, and `close` may be called twice."""
        workspace = provider.open_workspace(group(["m"], tmp_path, embed=False, prefix=""))
        assert not workspace.finish()
        workspace.close()
        workspace.close()

    def test_a_binary_can_be_streamed_again(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """`chunks` starts from the beginning each time."""
        part = partition(provider, "m", model())
        workspace = provider.open_workspace(group(["m"], tmp_path, embed=False, prefix=""))
        try:
            workspace.compile(part, part.partitions)
            (binary,) = workspace.finish()
            assert b"".join(binary.chunks()) == b"".join(binary.chunks()) != b""
        finally:
            workspace.close()

    def test_fresh_workspaces_make_the_same_bytes(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """Two workspaces of two providers in two folders make equal files."""
        if provider.isolated:
            pytest.skip("it needs a fresh process for each session group")
        models = {"m": model(barriers=1)}
        first = build(provider, tmp_path / "one", models, split=True)
        second = build(self.create(), tmp_path / "two" / "deeper", models, split=True)
        assert first.contents() == second.contents()

    # Numbers, threads, corruption and paths.

    @pytest.mark.parametrize("embed", [False, True])
    def test_numbers_are_those_of_the_source(
        self, loading: ExecutionProvider, tmp_path: Path, embed: bool
    ) -> None:
        """Numbers are right with several partitions and default-EP nodes between them, from a path
        and from bytes.
        """
        source = model(batch=2, barriers=2)
        built = build(loading, tmp_path, {"m": source}, embed=embed, split=True)
        path = built.path("m")
        from_bytes = {"ep.context_file_path": str(built.folder / "need_not_exist.onnx")}
        for run in (
            open_session(loading, path),
            open_session(loading, path.read_bytes(), from_bytes),
        ):
            for seed in range(2):
                self.close_to(run(feed(2, seed)), expected(source, feed(2, seed)))

    def test_kernels_are_stateless_and_run_in_many_threads(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """The same input gives the same output, also with concurrent runs."""
        built = build(loading, tmp_path, {"m": model(barriers=1)}, split=True)
        run = open_session(loading, built.path("m"))
        wanted = [run(feed(seed=seed)) for seed in range(4)]
        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(lambda i: run(feed(seed=i % 4)), range(64)))
        for i, output in enumerate(outputs):
            np.testing.assert_array_equal(output, wanted[i % 4])

    @pytest.mark.parametrize("how", CORRUPTIONS)
    def test_a_corrupt_binary_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path, how: str
    ) -> None:
        """A damaged binary raises `InvalidGraph`, and never causes a crash or other numbers."""
        built = build(loading, tmp_path, {"m": model()})
        binary = built.folder / built.binaries[0]
        binary.write_bytes(CORRUPTIONS[how](binary.read_bytes()))
        with pytest.raises(InvalidGraph):
            load(loading, built.nodes["m"], built.folder)

    @pytest.mark.parametrize("how", ["empty", "cut to half", "bits flipped in the middle"])
    def test_a_corrupt_payload_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path, how: str
    ) -> None:
        """A damaged embedded context raises `InvalidGraph`."""
        built = build(loading, tmp_path, {"m": model()}, embed=True)
        (node,) = built.nodes["m"]
        with pytest.raises(InvalidGraph):
            load(loading, [with_content(node, CORRUPTIONS[how])], built.folder)

    @pytest.mark.parametrize("path", ["absent.bin", "../{}", "sub/../{}", ".", "", "/dev/null"])
    def test_a_path_that_leads_to_no_binary_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path, path: str
    ) -> None:
        """The path is missing, outside the folder, or not a file."""
        built = build(loading, tmp_path, {"m": model()})
        (built.folder / "sub").mkdir()
        (built.folder.parent / built.binaries[0]).write_bytes(b"")
        (node,) = built.nodes["m"]
        content = path.format(built.binaries[0]).encode()
        with pytest.raises(InvalidGraph):
            load(loading, [with_content(node, lambda _: content)], built.folder)

    def test_a_binary_in_a_subfolder_is_found(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """`ep_cache_context` may be `subfolder/file`."""
        built = build(loading, tmp_path, {"m": model()})
        (built.folder / "sub").mkdir()
        name = built.binaries[0]
        (built.folder / name).rename(built.folder / "sub" / name)
        (node,) = built.nodes["m"]
        content = f"sub/{name}".encode()
        assert load(loading, [with_content(node, lambda _: content)], built.folder)

    def test_a_binary_of_another_build_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """A binary with the same names, shapes and graphs but other weights is refused."""
        built = build(loading, tmp_path / "new", {"m": model(seed=1)})
        stale = build(loading, tmp_path / "old", {"m": model(seed=2)})
        name = built.binaries[0]
        (built.folder / name).write_bytes((stale.folder / name).read_bytes())
        with pytest.raises(InvalidGraph):
            load(loading, built.nodes["m"], built.folder)

    def test_without_a_folder_a_path_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """A model from bytes without `ep.context_file_path` is refused."""
        built = build(loading, tmp_path, {"m": model()})
        with pytest.raises(InvalidGraph):
            load(loading, built.nodes["m"], None)

    def test_a_node_finds_its_graph_in_another_nodes_context_alone(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """Nodes with `main_context = 0` load only together with their primary node."""
        built = build(loading, tmp_path, {"m": model(barriers=1)}, split=True)
        nodes = built.nodes["m"]
        secondary = [node for node in nodes if not node.main_context]
        if secondary:
            with pytest.raises(InvalidGraph):
                load(loading, secondary, built.folder)
        assert len(load(loading, nodes, built.folder)) == len(nodes)

    # The shared workspaces, of the build and of the runtime.

    def test_n_models_make_n_plus_1_files(self, sharing: ExecutionProvider, tmp_path: Path) -> None:
        """The first model names the binary, and all models refer to it."""
        models = {name: model(batch=n + 1) for n, name in enumerate("abc")}
        built = build(sharing, tmp_path, models)
        assert built.binaries == (f"a_{sharing.label}.bin",)
        assert sorted(built.contents()) == sorted(
            ["a_ctx.onnx", "b_ctx.onnx", "c_ctx.onnx", *built.binaries]
        )
        refer_to(built, built.binaries[0])
        names = [node.name for nodes in built.nodes.values() for node in nodes]
        assert len(set(names)) == len(names)

    def test_a_closed_workspace_is_empty(self, sharing: ExecutionProvider, tmp_path: Path) -> None:
        """A closed workspace leaves no trace: the next session is the first."""
        if sharing.isolated:
            pytest.skip("it needs a fresh process for each session group")
        alone = build(sharing, tmp_path / "alone", {"b": model(batch=2)}).contents()
        part = partition(sharing, "a", model())
        workspace = sharing.open_workspace(group("ab", tmp_path / "left", embed=False, prefix=""))
        workspace.compile(part, part.partitions)
        workspace.close()
        assert build(sharing, tmp_path / "after", {"b": model(batch=2)}).contents() == alone

    @pytest.mark.parametrize("order", ["ab", "ba"])
    def test_a_second_session_takes_its_graph_and_reads_nothing(
        self, sharing: ExecutionProvider, loading: ExecutionProvider, tmp_path: Path, order: str
    ) -> None:
        """Two sessions share in either order. The graphs are then taken, so a third session reads
        again.
        """
        built = build(sharing, tmp_path, {"a": model(batch=1), "b": model(batch=2)})
        nowhere = tmp_path / "nowhere"
        nowhere.mkdir()
        shared = SharedContexts()
        first, second = (built.nodes[name] for name in order)
        kept = [loading.load(first, built.folder, shared)]
        assert shared.graphs, "the graphs left over are not in the shared workspace"
        kept.append(loading.load(second, nowhere, shared))
        with pytest.raises(InvalidGraph):
            loading.load(second, nowhere, shared)
        kept.append(loading.load(second, built.folder, shared))
        while kept:  # sessions are destroyed in reverse order
            kept.pop()

    def test_a_failed_load_takes_nothing(
        self, sharing: ExecutionProvider, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """A failed session puts back what it took, for the next."""
        built = build(sharing, tmp_path, {"a": model(batch=1), "b": model(batch=2)})
        nowhere = tmp_path / "nowhere"
        nowhere.mkdir()
        shared = SharedContexts()
        loading.load(built.nodes["a"], built.folder, shared)
        remaining = dict(shared.graphs)
        with pytest.raises(InvalidGraph):
            loading.load([*built.nodes["b"], *built.nodes["a"]], nowhere, shared)
        assert shared.graphs == remaining

    def test_sessions_that_share_compute_what_their_sources_do(
        self, sharing: ExecutionProvider, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """A group's sessions are alive at once, and run in turn."""
        models = {"a": model(batch=1), "b": model(batch=2), "c": model(batch=3, seed=7)}
        built = build(sharing, tmp_path, models)
        options = {"ep.share_ep_contexts": "1"}
        last = options | {"ep.stop_share_ep_contexts": "1"}
        runs = {
            name: open_session(loading, built.path(name), last if name == "c" else options)
            for name in models
        }
        for batch, (name, run) in enumerate(runs.items(), start=1):
            self.close_to(run(feed(batch)), expected(models[name], feed(batch)))
