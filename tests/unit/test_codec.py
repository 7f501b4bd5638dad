import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from epctx import codec
from epctx.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A part."""

    path: Path
    sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Outer:
    """The whole."""

    inner: Inner
    name: str = "n"


VALUE = Outer(inner=Inner(path=Path("a/b"), sizes=(1, 2)))


def test_there_and_back() -> None:
    encoded = codec.encode(VALUE)
    assert encoded == b'{"inner":{"path":"a/b","sizes":[1,2]},"name":"n"}'
    assert codec.decode(encoded, Outer) == VALUE
    assert codec.decode(codec.encode(VALUE, indent=2), Outer) == VALUE
    assert codec.encode(PurePosixPath("x")) == b'"x"'


def test_what_does_not_fit_names_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.inner\.sizes\[0\]"):
        codec.decode(b'{"inner":{"path":"a","sizes":["1"]}}', Outer)
    with pytest.raises(TypeError, match="has no JSON form"):
        codec.encode(object())


MANY_THREADS = """
import sys, threading
from dataclasses import make_dataclass
from epctx import codec
from epctx.errors import UsageError

sys.setswitchinterval(1e-6)
for number in range(150):
    inner = make_dataclass("Inner", [("x", int), ("y", tuple[str, ...])])
    outer = make_dataclass("Outer", [(n, dict[str, inner]) for n in "abcd"])
    barrier = threading.Barrier(6)

    def work(kind):
        barrier.wait()
        part = '{"k": {"x": 1, "y": ["z"]}}'
        found = codec.decode("{" + ",".join(f'"{n}": {part}' for n in "abcd") + "}", kind)
        assert found.d["k"].x == 1

    threads = [threading.Thread(target=work, args=(outer,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_see_a_type_for_the_first_time_do_not_crash() -> None:
    """With msgspec.json.decode itself, this ends in a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("data", [b'{"name":"\x9a"}', b"[" * 5000, b"", b"nul"])
def test_whatever_is_no_json_is_one_error(data: bytes) -> None:
    """msgspec lets UnicodeDecodeError and RecursionError through."""
    with pytest.raises(msgspec.DecodeError):
        codec.decode(data, dict[str, object])


def test_the_name_of_a_file_that_is_no_text_is_told() -> None:
    """Python has such names with surrogates, which no JSON can hold."""
    with pytest.raises(UsageError, match="is not UTF-8") as caught:
        codec.encode({"file": os.fsdecode(b"\xff.onnx")})
    assert caught.value.where == "\\udcff.onnx"
