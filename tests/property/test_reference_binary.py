"""A damaged context binary is refused; it never gives other numbers, and never crashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode, read_all
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.providers.reference.layout import ENTRY, HEADER, PREFIX_SIZE
from tests.kit.building import build, mlp, normal
from tests.kit.sealing import resealed
from tests.kit.strategies import damages

X = normal((1, 64))
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


class Artifact:
    """A model with one EPContext node, its binary, and what it computes."""

    def __init__(self, folder: Path) -> None:
        models = {"m": mlp(layers=1), "n": mlp(layers=1, batch=2, seed=1)}
        self.folder = build(folder, models)
        (self.node,) = read_all(onnx.load(self.folder / "m_ctx.onnx"))
        self.binary = (self.folder / "m_reference.bin").read_bytes()
        self.wanted = self.compute(self.node)

    def compute(self, node: EPContextNode) -> np.ndarray:
        (kernel,) = ReferenceExecutionProvider({}).load([node], self.folder, None)
        (y,) = kernel.compute([ort.OrtValue.ortvalue_from_numpy(X)])
        return np.array(y.numpy())

    def never_wrong(self, binary: bytes) -> None:
        (self.folder / "m_reference.bin").write_bytes(binary)
        embedded = replace(self.node, embed_mode=1, ep_cache_context=binary)
        for node in (self.node, embedded):
            try:
                found = self.compute(node)
            except InvalidGraph:
                continue
            np.testing.assert_array_equal(found, self.wanted)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact(tmp_path_factory.mktemp("artifact"))


@SETTINGS
@given(data=st.data())
def test_damage_never_gives_other_numbers(artifact: Artifact, data: st.DataObject) -> None:
    damaged = data.draw(damages(artifact.binary))
    assume(damaged != artifact.binary)
    artifact.never_wrong(damaged)


def test_every_kind_of_change_of_a_byte_is_refused(artifact: Artifact) -> None:
    step = max(len(artifact.binary) // 200, 1)
    for at in range(0, len(artifact.binary), step):
        damaged = bytearray(artifact.binary)
        damaged[at] ^= 0xFF
        (artifact.folder / "m_reference.bin").write_bytes(damaged)
        with pytest.raises(InvalidGraph):
            artifact.compute(artifact.node)


@SETTINGS
@given(at=st.integers(PREFIX_SIZE, 2**20), value=st.integers(1, 255), count=st.integers(1, 8))
@example(at=10**6, value=1, count=1)
def test_a_forged_binary_never_gives_other_numbers(
    artifact: Artifact, at: int, value: int, count: int
) -> None:
    """The node says which graph, and the graph which weights: checksums alone do not help."""
    _, _, offset, length, _, _ = ENTRY.unpack_from(artifact.binary, HEADER.size + ENTRY.size * 3)
    at = PREFIX_SIZE + at % (len(artifact.binary) - PREFIX_SIZE)
    assume(not offset <= at < offset + length)  # where resealing itself reads
    damaged = bytearray(artifact.binary)
    for i in range(at, min(at + count, len(damaged))):
        if not offset <= i < offset + length:
            damaged[i] ^= value
    artifact.never_wrong(resealed(bytes(damaged)))
