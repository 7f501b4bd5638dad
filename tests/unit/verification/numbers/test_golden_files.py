"""Golden files: the same bytes for the same arrays; broken and hostile ones are refused."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.errors import VerificationError
from epctx.manifest import Tolerance
from epctx.verification.numbers import golden_files
from epctx.verification.numbers.golden_files import Golden, GoldenCase, GoldenModel, GoldenSet

ARRAYS: dict[str, np.ndarray] = {
    "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "a/b:0": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "scalar": np.array(1.5),
    "empty": np.zeros((0, 3), np.float16),
    "flags": np.array([True, False]),
}
MODEL = GoldenModel(
    precision="float32",
    tolerance=Tolerance(),
    sets=(GoldenSet(label="seed 0, set 0", inputs=tuple(ARRAYS), outputs=("y",)),),
)


def write(folder: Path) -> Path:
    path = folder / "m.npz"
    y: dict[str, np.ndarray] = {"y": np.ones(3, np.float32)}
    golden_files.write(path, [GoldenCase(label="seed 0, set 0", inputs=ARRAYS, outputs=y)])
    return path


def test_one_precision_for_all_outputs_is_read_too(tmp_path: Path) -> None:
    """As epctx 0.1 wrote it."""
    for of in ("float32", {"y": "float16"}):
        record = codec.encode(Golden(models={"m": replace(MODEL, precision=of)}))
        (tmp_path / "golden.json").write_bytes(record)
        assert golden_files.read_record(tmp_path).models["m"].precision == of


def test_what_numpy_has_no_name_for_keeps_its_bits(tmp_path: Path) -> None:
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    text = np.array(["a", "bc"], object)
    case = GoldenCase(label="l", inputs={"x": array, "t": text}, outputs={})
    golden_files.write(tmp_path / "m.npz", [case])
    sets = (GoldenSet(label="l", inputs=("x", "t"), outputs=()),)
    model = GoldenModel(precision="bfloat16", tolerance=Tolerance(), sets=sets)
    (read,) = golden_files.read(tmp_path, "m", model)
    np.testing.assert_array_equal(read.inputs["x"].view(ml_dtypes.bfloat16), array)
    assert read.inputs["t"].tolist() == ["a", "bc"]


def packed(path: Path, content: bytes, *, kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name in ARRAYS:
            archive.writestr(f"0/inputs/{name}.npy", content)
        archive.writestr("0/outputs/y.npy", content)


def compressed(path: Path) -> None:
    packed(path, b"\0" * 1000, kind=zipfile.ZIP_DEFLATED)


def pickled(path: Path) -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    packed(path, start + pickle.dumps([print]))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, "it does not exist"),
        (lambda path: path.write_bytes(b"PK\x03\x04"), "not a zip file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "not a zip file"),
        (compressed, "compressed"),
        (pickled, "allow_pickle"),
        (lambda path: packed(path, b"\x93NUMPY"), ""),
        (lambda path: zipfile.ZipFile(path, "w").close(), "There is no item named"),
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    damage(write(tmp_path))
    with pytest.raises(VerificationError) as caught:
        golden_files.read(tmp_path, "m", MODEL)
    assert why in str(caught.value.why)


@pytest.mark.parametrize("content", [None, b"{", b'{"version": 2, "models": {}}'])
def test_a_broken_record_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / golden_files.RECORD).write_bytes(content)
    with pytest.raises(VerificationError):
        golden_files.read_record(tmp_path)


def test_files_beyond_their_limits_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    (tmp_path / golden_files.RECORD).write_bytes(b"{}" + b" " * 1000)
    for name in ("UNPACKED", "RECORD"):
        monkeypatch.setenv(f"EPCTX_LIMIT_{name}_BYTES", "1000")
    with pytest.raises(VerificationError, match=r"m.npz: has .* bytes, more than 1,000 bytes"):
        golden_files.read(tmp_path, "m", MODEL)
    with pytest.raises(VerificationError, match=r"golden.json: has 1,002 bytes, more than 1,000"):
        golden_files.read_record(tmp_path)


def test_an_array_that_is_listed_often_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    read: list[str] = []
    member = golden_files._read

    def counted(archive: zipfile.ZipFile, name: str) -> np.ndarray:
        read.append(name)
        return member(archive, name)

    monkeypatch.setattr(golden_files, "_read", counted)
    often = GoldenSet(label="l", inputs=("ids",) * 9, outputs=("y",) * 9)
    golden_files.read(tmp_path, "m", replace(MODEL, sets=(often,)))
    assert read == ["0/inputs/ids.npy", "0/outputs/y.npy"]
