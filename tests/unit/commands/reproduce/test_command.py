"""`epctx reproduce`: its verdicts, and the comparison of files."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from epctx.commands.reproduce import command
from epctx.commands.reproduce.result import compare_folders
from epctx.engine.plan import Plan
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedGroup, LockedProvider, LockedToolchain
from epctx.manifest import Manifest, PartitionSettings
from tests.kit.building import mlp

PLAN = Plan(manifest=Manifest(name="m", path=Path("m.yaml"), targets=()), groups=(), whole=True)
EP = "OpenVINOExecutionProvider"


def lock(*, isa: str = "avx2", version: str = "1", code: str = "1") -> Lock:
    provider = LockedToolchain(
        code=f"epctx blake3:{code}", host={"isa": isa}, toolchain={"openvino": version}
    )
    group = LockedGroup(
        embed_mode=0,
        execution_providers=(LockedProvider(options={}, provider=EP),),
        external_initializers=None,
        models={},
        node_name_prefix="",
        optimize="basic",
        partition=PartitionSettings(
            exclude_nodes=(),
            exclude_op_types=(),
            max_partitions=None,
            min_nodes=1,
            require_coverage=None,
        ),
        passes=(),
        passes_of_others={},
        session_groups={},
        session_options={},
    )
    eps = {EP: provider}
    return Lock(
        name="m", toolchain={}, sources={}, execution_providers=eps, groups={"default/g": group}
    )


def output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a file of the locks were another; what they are made of is tested with the lock."""
    from epctx.lockfile import differences

    told = differences.Difference(kind="output", where="default/g/m.bin", what="is another")
    monkeypatch.setattr(differences, "_outputs", lambda old, new: [told])


def test_without_a_lock_nothing_is_said() -> None:
    assert command.judged(None, lock(), PLAN) == ("no lock", ())


def test_another_toolchain_that_gives_the_same_bytes() -> None:
    verdict, told = command.judged(lock(), lock(version="2"), PLAN)
    assert verdict == "the same outputs"
    assert [each.kind for each in told] == ["toolchain"]


def test_another_toolchain_that_gives_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    output(monkeypatch)
    verdict, told = command.judged(lock(), lock(version="2"), PLAN)
    assert verdict == "differs"
    assert [each.kind for each in told] == ["toolchain", "output"]


def test_another_cpu_is_another_host_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    output(monkeypatch)
    verdict, told = command.judged(lock(), lock(isa="avx512"), PLAN)
    assert verdict == "made on another host"
    assert 'made on another host: isa: "avx2" is now "avx512"' in str(told[0])
    old = replace(lock(), name="m")
    assert command.judged(old, lock(isa="avx512", version="2"), PLAN)[0] == "differs"


def test_a_lock_of_several_kinds_of_host_is_asked_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = hosts.added(lock(), lock(isa="avx512"))
    assert len(hosts.kinds(both)) == 2
    for isa in ("avx2", "avx512"):
        assert command.judged(both, lock(isa=isa), PLAN) == ("the same", ())
    output(monkeypatch)
    assert command.judged(both, lock(isa="avx2"), PLAN)[0] == "differs"
    assert command.judged(both, lock(isa="amx"), PLAN)[0] == "made on another host"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    made = (tmp_path / "old", tmp_path / "new")
    for folder in made:
        (folder / "g").mkdir(parents=True)
        onnx.save(mlp(width=8), folder / "g" / "m_ctx.onnx")
        (folder / "g" / "m.bin").write_bytes(b"0123456789")
        (folder / "g" / "SHA256SUMS").write_text("1  m.bin\n2  m_ctx.onnx\n")
    return made


def differing(folders: tuple[Path, Path]) -> dict[str, tuple[str, str | None]]:
    found = compare_folders(*folders)
    assert len(found) >= 3
    return {f.file: (f.state, f.difference) for f in found if f.state != "identical"}


def test_bytes(folders: tuple[Path, Path]) -> None:
    (folders[1] / "g" / "m.bin").write_bytes(b"01234X6789")
    assert differing(folders) == {
        "g/m.bin": ("payload differs", "byte 5 of 10 is the first of 1 that differ")
    }


def test_a_file_that_only_one_has(folders: tuple[Path, Path]) -> None:
    (folders[0] / "g" / "m.bin").unlink()
    (folders[1] / "g" / "m_ctx.onnx").unlink()
    assert differing(folders) == {
        "g/m.bin": ("payload differs", "only the second has it"),
        "g/m_ctx.onnx": ("payload differs", "only the first has it"),
    }


def test_sums_name_the_files(folders: tuple[Path, Path]) -> None:
    (folders[1] / "g" / "SHA256SUMS").write_text("1  m.bin\n3  m_ctx.onnx\n")
    assert differing(folders) == {"g/SHA256SUMS": ("metadata differs", "sums of m_ctx.onnx")}


def test_metadata_is_told_from_payload(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "g" / "m_ctx.onnx"
    proto = onnx.load(path)
    proto.doc_string = "edited"
    onnx.save(proto, path)
    assert differing(folders)["g/m_ctx.onnx"] == (
        "metadata differs",
        "doc_string:  is now edited",
    )
    proto.graph.node[0].input[1] = "w1"
    onnx.save(proto, path)
    state, told = differing(folders)["g/m_ctx.onnx"]
    assert state == "payload differs"
    assert told == "node 'mm0' (MatMul): inputs ['x', 'w0'] is now ['x', 'w1']"


def test_another_serialization_is_metadata(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "g" / "m_ctx.onnx"
    proto = onnx.load(path)
    turned = list(reversed(proto.graph.initializer))
    copies = [onnx.TensorProto.FromString(each.SerializeToString()) for each in turned]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(copies)
    onnx.save(proto, path)
    state, told = differing(folders)["g/m_ctx.onnx"]
    assert state == "metadata differs"
    assert told is not None
    assert told.startswith("the same model, serialized differently: byte ")


def test_a_broken_model_is_bytes(folders: tuple[Path, Path]) -> None:
    (folders[1] / "g" / "m_ctx.onnx").write_bytes(b"broken")
    state, told = differing(folders)["g/m_ctx.onnx"]
    assert state == "payload differs"
    assert told is not None
    assert "the first difference is at byte 0" in told
