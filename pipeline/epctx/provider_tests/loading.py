"""What a provider makes of EPContext nodes, sound and broken."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from epctx.errors import InvalidGraph
from epctx.provider_tests.building import build, expected, feed, model, open_session
from epctx.provider_tests.subject import Subject, load, with_content
from epctx.providers.base import ExecutionProvider

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
"""What happens to files on their way to a device."""


def _patched(data: bytes, at: int, size: int, change: Callable[[bytes], bytes]) -> bytes:
    return data[:at] + change(data[at : at + size]) + data[at + size :]


class Loading(Subject):
    """Tests of numbers, threads, corruption and paths."""

    @pytest.mark.parametrize("embed", [False, True])
    def test_numbers_are_those_of_the_source(
        self, loading: ExecutionProvider, tmp_path: Path, embed: bool
    ) -> None:
        """Several partitions and default-EP nodes between them, from a path and from bytes."""
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
        """The same input has the same output, whatever runs at the same time."""
        built = build(loading, tmp_path, {"m": model(barriers=1)}, split=True)
        run = open_session(loading, built.path("m"))
        wanted = [run(feed(seed=seed)) for seed in range(4)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda i: run(feed(seed=i % 4)), range(64)))
        for i, one in enumerate(found):
            np.testing.assert_array_equal(one, wanted[i % 4])

    @pytest.mark.parametrize("how", CORRUPTIONS)
    def test_a_corrupt_binary_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path, how: str
    ) -> None:
        """Never a crash, never other numbers."""
        built = build(loading, tmp_path, {"m": model()})
        binary = built.folder / built.binaries[0]
        binary.write_bytes(CORRUPTIONS[how](binary.read_bytes()))
        with pytest.raises(InvalidGraph):
            load(loading, built.nodes["m"], built.folder)

    @pytest.mark.parametrize("how", ["empty", "cut to half", "bits flipped in the middle"])
    def test_a_corrupt_payload_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path, how: str
    ) -> None:
        """The same for an embedded context."""
        built = build(loading, tmp_path, {"m": model()}, embed=True)
        (node,) = built.nodes["m"]
        with pytest.raises(InvalidGraph):
            load(loading, [with_content(node, CORRUPTIONS[how])], built.folder)

    @pytest.mark.parametrize("path", ["absent.bin", "../{}", "sub/../{}", ".", "", "/dev/null"])
    def test_a_path_that_leads_to_no_binary_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path, path: str
    ) -> None:
        """Missing, outside the folder, not a file."""
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
        """The same names, shapes and graphs, other weights."""
        built = build(loading, tmp_path / "new", {"m": model(seed=1)})
        stale = build(loading, tmp_path / "old", {"m": model(seed=2)})
        name = built.binaries[0]
        (built.folder / name).write_bytes((stale.folder / name).read_bytes())
        with pytest.raises(InvalidGraph):
            load(loading, built.nodes["m"], built.folder)

    def test_without_a_folder_a_path_is_an_invalid_graph(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """From bytes, without `ep.context_file_path`."""
        built = build(loading, tmp_path, {"m": model()})
        with pytest.raises(InvalidGraph):
            load(loading, built.nodes["m"], None)

    def test_a_node_finds_its_graph_in_another_nodes_context_alone(
        self, loading: ExecutionProvider, tmp_path: Path
    ) -> None:
        """`main_context = 0` without a primary node, and an unknown `partition_name`."""
        built = build(loading, tmp_path, {"m": model(barriers=1)}, split=True)
        nodes = built.nodes["m"]
        secondary = [node for node in nodes if not node.main_context]
        if secondary:
            with pytest.raises(InvalidGraph):
                load(loading, secondary, built.folder)
        assert len(load(loading, nodes, built.folder)) == len(nodes)
