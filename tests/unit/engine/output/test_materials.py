"""What made the bytes: every package and library that the lock names, with what is known of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.engine.output import attestation
from epctx.engine.output.attestation import Material
from epctx.files.digest import of_bytes
from epctx.lockfile.types import Lock, LockedSource, LockedToolchain

NUMPY = importlib.metadata.version("numpy")


@pytest.fixture
def lock() -> Lock:
    """With two EPs: one that epctx brings, one of another package."""
    return Lock(
        execution_providers={
            "QNNExecutionProvider": LockedToolchain(
                code=f"epctx blake3:{'1' * 64}",
                host={},
                toolchain={
                    "numpy": NUMPY,
                    "onnxruntime-qnn": "0.0",
                    "format": "1",
                    "onnxruntime-qnn/libQnnHtp.so": f"blake3:{'2' * 64}",
                },
            ),
            "OtherExecutionProvider": LockedToolchain(
                code=f"other-ep 1.2 blake3:{'3' * 64}", host={}, toolchain={}
            ),
        },
        groups={},
        name="m",
        sources={},
        toolchain={"epctx": "0.1.0", "epctx/compile": f"blake3:{'4' * 64}"},
    )


def named(lock: Lock, folder: Path) -> dict[str, Material]:
    return {each.name: each for each in attestation.materials(lock, folder)}


def test_every_package_and_library_is_named_and_nothing_else(lock: Lock, tmp_path: Path) -> None:
    found = named(lock, tmp_path)
    assert found.keys() == {
        *("epctx", "epctx/compile", "numpy", "other-ep", "onnxruntime-qnn/libQnnHtp.so"),
        *("QNNExecutionProvider/code", "OtherExecutionProvider/code"),
    }, "what is not installed in that version is no package: it may be that of a format"
    assert found["other-ep"].uri == "pkg:pypi/other-ep@1.2"
    assert found["onnxruntime-qnn/libQnnHtp.so"].digests == {"blake3": "2" * 64}
    assert found["OtherExecutionProvider/code"].digests == {"blake3": "3" * 64}


def test_the_digest_of_a_package_is_of_what_its_wheel_brought(lock: Lock, tmp_path: Path) -> None:
    """As sha256sum computes it, in the folder where packages are."""
    distribution = importlib.metadata.distribution("numpy")
    lines = []
    for file in sorted(distribution.files or (), key=lambda file: file.as_posix().encode()):
        path = Path(str(distribution.locate_file(file)))
        noted = file.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
        if "__pycache__" not in file.parts and ".." not in file.parts and not noted:
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {file.as_posix()}\n")
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert named(lock, tmp_path)["numpy"].digests == {"dirHash": expected}


@pytest.mark.parametrize("origin", ["dir_info", "archive_info"])
def test_what_is_installed_from_a_folder_has_no_digest_of_its_own(
    origin: str, lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell where the folder is; that of its code is beside it."""
    name = origin.replace("_", "-")
    about = tmp_path / f"{origin}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n", encoding="utf-8")
    (about / "RECORD").write_text(f"{about.name}/METADATA,,\n", encoding="utf-8")
    url = {"url": "file:///somewhere", origin: {}}
    (about / "direct_url.json").write_text(json.dumps(url), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = named(replace(lock, toolchain={**lock.toolchain, name: "1.0"}), tmp_path)
    assert found[name].uri == f"pkg:pypi/{name}@1.0"
    assert bool(found[name].digests) == (origin == "archive_info")
    assert found["epctx/compile"].digests == {"blake3": "4" * 64}


def test_a_source_has_both_digests(lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"model")
    source = LockedSource(digest=str(of_bytes(b"model")), size=5)
    found = named(replace(lock, sources={"a.onnx": source}), tmp_path)
    assert found["a.onnx"].digests == {
        "blake3": of_bytes(b"model").hex,
        "sha256": of_bytes(b"model", "sha256").hex,
    }
