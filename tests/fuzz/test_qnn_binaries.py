"""QNN's context binaries, damaged at random: what its system library makes of them, in a process
of its own, is what is in them or an error in words.

Not one of `targets`: each reading is a process, and the library is native code, which coverage of
epctx does not guide.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from epctx.errors import InvalidGraph
from epctx.providers.onnxruntime.qnn import binary as qnn_binary
from tests.kit.command_line import epctx
from tests.kit.projects import make

pytestmark = pytest.mark.needs_device("QNNExecutionProvider")
SAMPLE = 24
_NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0")


SEVERAL = pytest.param(["60", "57"], id="several", marks=pytest.mark.soak)


@pytest.fixture(scope="module", params=[pytest.param("60", id="one chip"), SEVERAL])
def binary(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> bytes:
    project = make(tmp_path_factory.mktemp("qnn"), {"g": ["a"]})
    project.document["execution_providers"] = {
        "ref": {"provider": "QNNExecutionProvider", "options": {"soc_model": request.param}}
    }
    project.manifest.write_text(yaml.safe_dump(project.document), encoding="utf-8")
    ended = epctx("build", "m.yaml", "--no-verify", cwd=project.folder)
    assert ended.returncode == 0, ended.stderr
    (path,) = project.folder.glob("dist/m/*/g/*.bin")
    return path.read_bytes()


def _damaged(data: bytes, draw: random.Random) -> bytes:
    """Some edits, most of them in the tables, which are at the beginning or at the end."""
    made = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(min(len(made), draw.choice((512, 4096, len(made)))))
        place = len(made) - 1 - place if data.startswith(b"PK") and draw.randrange(2) else place
        kind = draw.randrange(5)
        if kind == 0:
            made[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            made[place : place + 4] = draw.choice(_NUMBERS)
        elif kind == 2:
            made[place : place + 8] = draw.randbytes(8)
        elif kind == 3:
            del made[place : place + draw.randint(1, 64)]
        else:
            made[place:place] = draw.randbytes(draw.randint(1, 64))
    return bytes(made)


def _read(data: bytes, path: Path) -> str:
    """What came of it, in a word."""
    import onnxruntime_qnn

    path.unlink(missing_ok=True)
    path.write_bytes(data)
    library = Path(onnxruntime_qnn.get_qnn_htp_path()).with_name("libQnnSystem.so")
    try:
        found = qnn_binary.read(library, path)
    except InvalidGraph as error:
        assert error.remedy and error.why
        return "crashed" if "was ended by" in error.why else "refused"
    assert all(graph.name is not None for each in found.contexts for graph in each.graphs)
    return "read"


def test_a_sample_of_damaged_binaries(binary: bytes, tmp_path: Path) -> None:
    draw = random.Random(0)
    found = Counter(_read(_damaged(binary, draw), tmp_path / "x.bin") for _ in range(SAMPLE))
    assert found["refused"] + found["crashed"] > 0, found


@pytest.mark.soak
def test_damaged_binaries(binary: bytes, tmp_path: Path) -> None:
    seconds = float(os.environ.get("EPCTX_FUZZ_SECONDS", "75"))
    draw, found, end = random.Random(), Counter[str](), time.monotonic() + seconds
    while time.monotonic() < end:
        found[_read(_damaged(binary, draw), tmp_path / "x.bin")] += 1
    print(f"\nqnn_binary: {found.total():,} in {seconds:g} s: {dict(found)}")
    assert found["refused"] > 0
