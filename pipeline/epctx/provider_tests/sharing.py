"""Several models in one context: compiled together, loaded one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import InvalidGraph
from epctx.provider_tests.building import (
    build,
    expected,
    feed,
    group,
    model,
    open_session,
    partition,
)
from epctx.provider_tests.subject import Subject, refer_to
from epctx.providers.base import ExecutionProvider, SharedContexts


class Sharing(Subject):
    """Tests of the shared workspaces, of the build and of the runtime."""

    def test_n_models_make_n_plus_1_files(self, sharing: ExecutionProvider, tmp_path: Path) -> None:
        """The first names the binary, all refer to it."""
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
        """What was compiled before `close` leaves no trace: the next session is the first."""
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
        """Either order; the graphs have moved out afterwards, so a third session reads again."""
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
        while kept:  # destroyed in reverse order
            kept.pop()

    def test_a_failed_load_takes_nothing(
        self, sharing: ExecutionProvider, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """What a session took before it failed is there for the next."""
        built = build(sharing, tmp_path, {"a": model(batch=1), "b": model(batch=2)})
        nowhere = tmp_path / "nowhere"
        nowhere.mkdir()
        shared = SharedContexts()
        loading.load(built.nodes["a"], built.folder, shared)
        left = dict(shared.graphs)
        with pytest.raises(InvalidGraph):
            loading.load([*built.nodes["b"], *built.nodes["a"]], nowhere, shared)
        assert shared.graphs == left

    def test_sessions_that_share_compute_what_their_sources_do(
        self, sharing: ExecutionProvider, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """All of a group's sessions alive at once, run in turn."""
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
