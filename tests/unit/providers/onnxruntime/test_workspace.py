"""The workspace's own rules, with an EP that misbehaves as told; real EPs: tests/integration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from epctx.errors import CompileError, ManifestError
from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Replacement
from epctx.providers.base import (
    BinaryGraph,
    Fingerprint,
    PartitionedModel,
    SessionGroupSpec,
)
from epctx.providers.onnxruntime import session, workspace
from epctx.providers.onnxruntime.ep import OrtEp
from epctx.providers.onnxruntime.provider import OrtProvider
from epctx.providers.onnxruntime.session import Generated, Mark
from epctx.providers.onnxruntime.workspace import OrtWorkspace
from tests.kit import onnx_text

TWO = "g (float[4] x) => (float[4] y) { [a] h = Abs (x) [b] m = Neg (h) [c] y = Exp (m) }"


@dataclass
class Fake(OrtProvider):
    """Records what is asked of it, and does as its fields say."""

    name: str = "FakeExecutionProvider"
    label: str = "fake"
    sources: frozenset[str] = frozenset({"FAKE"})
    can_share: bool = True
    parts_share: bool = True
    shares_outside = False
    takes: frozenset[str] = frozenset({"m", "m_1", "n", "eye_m"})
    source: str = "FAKE"
    typed: bool = True
    binary: str | None = None
    writes: bool = True
    stray: bool = False
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    abandoned: int = 0
    checked: list[tuple[str, int]] = field(default_factory=list)
    alone: Mapping[str, OrtEp] = field(default_factory=dict)
    told: tuple[BinaryGraph, ...] = ()

    def add_to(self, options: ort.SessionOptions) -> None:
        raise AssertionError

    def ep_devices(self) -> Sequence[ort.OrtEpDevice]:
        return ()

    def own_fingerprint(self) -> Fingerprint:
        return Fingerprint(toolchain={})

    def abandon(self) -> None:
        self.abandoned += 1

    def check_binary(self, binary: Path, nodes: Sequence[ir.Node]) -> None:
        self.checked.append((binary.name, len(nodes)))

    def variants(self) -> Mapping[str, OrtEp]:
        return self.alone

    def graphs(self, binary: Path) -> Mapping[str, Sequence[BinaryGraph]]:
        return dict.fromkeys(self.alone, self.told) or {"A": self.told, "B": self.told}

    def generate(
        self,
        name: str,
        ep: object,
        *,
        embed_mode: int,
        entries: Mapping[str, str],
        into: Path | None = None,
        **__: object,
    ) -> Generated:
        """What `session.generate` would do with this EP."""
        if isinstance(ep, Fake) and ep is not self and into is not None:
            into.mkdir(parents=True)
            (into / "alone_fake.bin").write_bytes(b"context")
            return ep.generate(name, ep, embed_mode=1, entries=entries)
        stem = Path(name).stem
        self.calls.append((stem, dict(entries)))
        written = None
        if stem in self.takes:
            written = Path(f"{stem}_ctx.onnx")
            self._write(written, stem, embed_mode)
        return Generated(session=None, model=written, log=Mark(path=None))

    def _write(self, path: Path, stem: str, embed_mode: int) -> None:
        source = onnx.load(f"{stem}.onnx", load_external_data=False).graph
        first = self.binary or f"{self.calls[0][0]}_fake.bin"
        if self.writes and not embed_mode:
            Path(first).write_bytes(b"context")
        if self.stray:
            Path("old_fake.bin").write_bytes(b"old")
        node = helper.make_node(
            "EPContext",
            [value.name for value in source.input],
            [value.name for value in source.output],
            name=f"{stem}_node",
            domain="com.microsoft",
            embed_mode=embed_mode,
            main_context=1,
            ep_cache_context=b"context" if embed_mode else first,
            source=self.source,
            partition_name=stem,
        )
        graph = helper.make_graph([node], "g", source.input, source.output)
        if not self.typed:
            graph.output[0].type.tensor_type.ClearField("shape")
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def partitioned(name: str, *groups: str) -> PartitionedModel:
    model = onnx_text.model(TWO)
    flow = Dataflow(model)
    place = {node.name: index for index, node in enumerate(flow.nodes)}
    partitions = tuple(flow.cut(0, [place[n] for n in group.split()]) for group in groups)
    return PartitionedModel(name=name, model=model, partitions=partitions, declined=(), nodes=3)


def open_(
    provider: Fake,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *models: str,
    prefix: str = "",
    embed_mode: Literal[0, 1] = 0,
    probe: frozenset[str] | None = None,
) -> OrtWorkspace:
    monkeypatch.setattr(session, "generate", provider.generate)
    monkeypatch.setattr(
        session, "needs_compilation", lambda name, *_: Path(name).stem in (probe or provider.takes)
    )
    monkeypatch.setattr(session, "ask_verbosely", lambda *_: "")
    spec = SessionGroupSpec(
        models=models,
        embed_mode=embed_mode,
        node_name_prefix=prefix,
        session_options={"session.x": "1"},
        folder=folder,
    )
    return OrtWorkspace(provider, spec)


def compile_(opened: OrtWorkspace, model: PartitionedModel) -> Sequence[Replacement]:
    return opened.compile(model, model.partitions)


SHARE, STOP = "ep.share_ep_contexts", "ep.stop_share_ep_contexts"


def flags(provider: Fake) -> list[tuple[str, bool, bool]]:
    return [(stem, SHARE in entries, STOP in entries) for stem, entries in provider.calls]


def test_one_model_shares_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Fake()
    opened = open_(provider, tmp_path, monkeypatch, "m")
    (replacement,) = compile_(opened, partitioned("m", "a b c"))
    assert flags(provider) == [("m", False, False)]
    assert provider.calls[0][1] == {"session.x": "1"}
    (binary,) = opened.finish()
    assert (binary.name, b"".join(binary.chunks())) == ("m_fake.bin", b"context")
    assert provider.checked == [("m_fake.bin", 1)]
    assert [node.op_type for node in replacement.fragment.graph] == ["EPContext"]
    opened.close()
    assert not provider.abandoned


def test_the_last_of_a_group_stops_sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Fake()
    opened = open_(provider, tmp_path, monkeypatch, "m", "n")
    compile_(opened, partitioned("m", "a b c"))
    compile_(opened, partitioned("n", "a b c"))
    assert flags(provider) == [("m", True, False), ("n", True, True)]
    assert [binary.name for binary in opened.finish()] == ["m_fake.bin"]
    opened.close()
    assert not provider.abandoned


def test_parts_of_one_model_share_where_the_ep_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Fake()
    opened = open_(provider, tmp_path, monkeypatch, "m")
    compile_(opened, partitioned("m", "a", "c"))
    assert flags(provider) == [("m", True, False), ("m_1", True, True)]


def test_the_last_part_that_is_taken_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that compiles nothing writes no binary; one after the last begins no new group."""
    provider = Fake(takes=frozenset({"m"}))
    opened = open_(provider, tmp_path, monkeypatch, "m")
    replacements = compile_(opened, partitioned("m", "a", "c"))
    assert flags(provider) == [("m", True, True), ("m_1", False, False)]
    assert len(replacements) == 1
    assert [binary.name for binary in opened.finish()] == ["m_fake.bin"]


@pytest.mark.parametrize("why", ["not able", "too large"])
def test_parts_have_a_binary_each_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    provider = Fake(parts_share=why != "not able")
    if why == "too large":
        monkeypatch.setattr(Fake, "shares_outside", True)
        monkeypatch.setattr(workspace, "_INSIDE_BELOW", 0)
    opened = open_(provider, tmp_path, monkeypatch, "m")
    monkeypatch.setattr(provider, "calls", [])

    def write(path: Path, stem: str, embed_mode: int) -> None:
        provider.binary = f"{stem}_fake.bin"
        Fake._write(provider, path, stem, embed_mode)

    monkeypatch.setattr(provider, "_write", write)
    compile_(opened, partitioned("m", "a", "c"))
    assert not any(shares for _, shares, _ in flags(provider))
    assert [binary.name for binary in opened.finish()] == ["m_fake.bin", "m_1_fake.bin"]


def test_a_group_that_nobody_stopped_is_an_error_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Fake(takes=frozenset({"m"}))
    opened = open_(provider, tmp_path, monkeypatch, "m", "n")
    compile_(opened, partitioned("m", "a b c"))
    with pytest.raises(CompileError, match="model n: FakeExecutionProvider compiled nothing"):
        compile_(opened, partitioned("n", "a b c"))
    with pytest.raises(CompileError, match="no session wrote the shared context"):
        opened.finish()
    opened.close()
    opened.close()
    assert provider.abandoned == 1


def test_a_prefix_goes_into_names_and_not_into_the_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Fake()
    opened = open_(provider, tmp_path, monkeypatch, "m", prefix="eye_")
    (replacement,) = compile_(opened, partitioned("m", "a b c"))
    (node,) = replacement.fragment.graph
    assert node.name == "eye_eye_m_node"
    assert node.attributes["ep_cache_context"].as_string() == "m_fake.bin"
    assert [binary.name for binary in opened.finish()] == ["m_fake.bin"]


def test_a_prefix_that_the_ep_cannot_carry_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(Fake):
        def refuse_prefix(self, *, several_graphs: bool) -> str | None:
            return "it will not"

    with pytest.raises(ManifestError, match="'eye_' cannot be applied: it will not"):
        open_(Stubborn(), tmp_path, monkeypatch, "m", prefix="eye_")


def test_embedded_contexts_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Fake()
    opened = open_(provider, tmp_path, monkeypatch, "m", embed_mode=1)
    compile_(opened, partitioned("m", "a b c"))
    assert list(opened.finish()) == []
    assert provider.checked == [("0.embedded", 1)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"writes": False}, "a model refers to m_fake.bin, which is missing or empty"),
        ({"stray": True}, "no model refers to old_fake.bin"),
    ],
)
def test_files_that_are_not_as_they_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], words: str
) -> None:
    opened = open_(Fake(**fault), tmp_path, monkeypatch, "m")
    compile_(opened, partitioned("m", "a b c"))
    with pytest.raises(CompileError) as caught:
        opened.finish()
    assert words in str(caught.value)


def test_a_node_of_another_ep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_(Fake(source="QNN"), tmp_path, monkeypatch, "m")
    with pytest.raises(CompileError, match="has the source 'QNN'"):
        compile_(opened, partitioned("m", "a b c"))


def test_outputs_get_the_shapes_that_the_source_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_(Fake(typed=False), tmp_path, monkeypatch, "m")
    (replacement,) = compile_(opened, partitioned("m", "a b c"))
    (node,) = replacement.fragment.graph
    assert node.outputs[0].shape == ir.Shape([4])
    assert node.outputs[0].type == ir.TensorType(ir.DataType.FLOAT)


def test_outputs_of_unknown_shape_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_(Fake(typed=False), tmp_path, monkeypatch, "m")
    model = partitioned("m", "a b c")
    model.model.graph.outputs[0].shape = None
    with pytest.raises(CompileError, match="has no type or shape"):
        compile_(opened, model)


def test_a_shape_that_nobody_knows_is_named_when_the_ep_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Fake()
    opened = open_(provider, tmp_path, monkeypatch, "m")

    def fail(*_: object, **__: object) -> None:
        raise CompileError("it failed", remedy="read the log")

    monkeypatch.setattr(session, "generate", fail)
    model = partitioned("m", "a b c")
    next(iter(model.model.graph)).outputs[0].shape = None
    with pytest.raises(CompileError) as caught:
        compile_(opened, model)
    assert str(caught.value).startswith("model m: it failed")
    assert "the first is 'h'" in str(caught.value)


def test_what_was_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Fake(takes=frozenset({"m"}))
    opened = open_(provider, tmp_path, monkeypatch, "m")
    model = partitioned("m", "a", "c")
    compile_(opened, model)
    left = opened.left_out("m")
    assert {node.name: why for node, why in left.items()} == {
        "c": "FakeExecutionProvider did not take it, and does not say why"
    }
    assert opened.left_out("n") == {}


def test_weights_left_on_the_cpu_are_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not onnxruntime's copies of them."""
    from epctx.providers.onnxruntime import exchange

    weight = ir.tensor(np.arange(4, dtype=np.float32), name="w")
    model = onnx_text.model(
        "g (float[4] x) => (float[4] y) <float[4] w = {0, 1, 2, 3}> { [a] y = Add (x, w) }"
    )
    model.graph.initializers["w"].const_value = weight
    flow = Dataflow(model)
    path = tmp_path / "m_ctx.onnx"
    onnx.save(ir.to_proto(model), path)
    read = exchange.read_fragment(path, flow.cut(0, [0]), frozenset({"FAKE"}), provider="Fake")
    assert read.graph.initializers["w"].const_value is weight
    assert weight.dtype == ir.DataType.FLOAT


def test_each_device_alone_is_held_to_the_file_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = BinaryGraph(name="g")
    alike, other = Fake(told=(graph,)), Fake(told=(BinaryGraph(name="h"),))
    none, more = Fake(takes=frozenset()), Fake(told=(graph, graph))
    alone = {"A": alike, "B": other, "C": none, "D": more}
    provider = Fake(alone=alone, told=(graph,))
    for each in alone.values():
        each.alone = alone
    opened = open_(provider, tmp_path, monkeypatch, "m")
    compile_(opened, partitioned("m", "a b c"))
    opened.finish()
    assert opened.variants() == ("A", "B", "C", "D")
    assert opened.choose("A") is None
    assert alike.calls == [("m", {"session.x": "1"})]
    assert "graph g is" in (opened.choose("B") or "")
    with pytest.raises(CompileError, match="compiled nothing for one device alone"):
        opened.choose("C")
    assert opened.choose("D") == "there are 1 graphs, alone 2"
    opened.close()


def test_devices_for_which_nothing_is_taken_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able, unable = Fake(), Fake()
    provider = Fake(alone={"A": able, "B": unable}, takes=frozenset())
    opened = open_(provider, tmp_path, monkeypatch, "m")
    monkeypatch.setattr(session, "needs_compilation", lambda _, asked: asked is able)
    with pytest.raises(CompileError) as caught:
        compile_(opened, partitioned("m", "a b c"))
    assert "it takes no node for B alone either" in str(caught.value)
    assert "for A" not in str(caught.value)
