from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from epctx.commands.verify import folders as group_folders
from epctx.errors import UsageError
from epctx.files.digest import of_file
from epctx.lockfile.types import Lock, LockedFile, LockedSession
from epctx.manifest import Manifest, Target
from epctx.verification.request import VerifyRequest
from tests.kit import folders


def manifest(*targets: str, groups: tuple[str, ...] = ("g",), name: str = "demo") -> Manifest:
    made = tuple(replace(folders.group(f"{g}_m"), name=g) for g in groups)
    return Manifest(
        name=name,
        path=Path("/somewhere/demo.yaml"),
        targets=tuple(Target(name=target, groups=made) for target in targets),
    )


def built(root: Path, *places: str) -> Path:
    for place in places:
        group = place.rpartition("/")[2]
        folder = folders.write(root / place)
        (folder / "m_ctx.onnx").rename(folder / f"{group}_m_ctx.onnx")
    return root


def find(paths: list[Path]) -> list[VerifyRequest]:
    return list(group_folders.survey(paths).requests)


def labels(requests: list[VerifyRequest], root: Path) -> list[str]:
    return [request.folder.relative_to(root.resolve()).as_posix() for request in requests]


def test_folders_without_epcontext_models_are_passed_over(tmp_path: Path) -> None:
    root = built(tmp_path, "g")
    (root / "models").mkdir()
    plain = folders.model()
    del plain.graph.node[0]
    plain.graph.node[0].input[0] = "x"
    (root / "models" / "source.onnx").write_bytes(plain.SerializeToString())
    assert labels(find([root]), root) == ["g"]
    (root / "models" / "broken.onnx").write_bytes(b"\xff\xffbroken")
    assert labels(find([root]), root) == ["g", "models"]


def test_a_model_is_looked_at_alone(tmp_path: Path) -> None:
    root = built(tmp_path, "g")
    (only,) = find([root / "g" / "g_m_ctx.onnx"])
    assert (only.models, only.folder) == (("g_m_ctx.onnx",), (root / "g").resolve())


@pytest.mark.needs("links")
def test_linked_folders_are_not_followed(tmp_path: Path) -> None:
    root = built(tmp_path, "real/g")
    (root / "real" / "loop").symlink_to(root)
    assert labels(find([root]), root) == ["real/g"]


def test_what_cannot_be_verified_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.bin").write_bytes(b"x")
    for path, words in (
        (tmp_path / "gone", "does not exist"),
        (tmp_path / "empty", "has nothing to verify"),
        (tmp_path / "x.bin", "is not an .onnx file"),
    ):
        with pytest.raises(UsageError, match=words):
            find([path])


def test_a_renamed_folder_is_known_by_its_models(tmp_path: Path) -> None:
    root = built(tmp_path, "g", "h")
    (root / "h").rename(root / "renamed")
    of = manifest("only", groups=("g", "h"))
    requests = find([root / "renamed", root / "g" / "g_m_ctx.onnx"])
    matched, _ = group_folders.match(requests, of, [root])
    assert [request.group and request.group.name for request in matched] == ["h", "g"]


def test_a_folder_of_no_group_or_of_several(tmp_path: Path) -> None:
    root = built(tmp_path, "elsewhere/g")
    requests = find([root])
    with pytest.raises(UsageError) as caught:
        group_folders.match(requests, manifest("one", "two"), [root])
    assert "matches several groups of the manifest demo.yaml: one/g, two/g" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        group_folders.match(requests, manifest("one", groups=("other",)), [root])
    assert "matches no group of the manifest demo.yaml" in str(caught.value)
    assert "one/other" in str(caught.value)


def lock_of(root: Path, *keys: str) -> Lock:
    """A lock that holds what is in the folders."""
    groups: dict[str, Any] = {}
    for key in keys:
        folder = root / "demo" / key
        outputs = {
            path.name: LockedFile(sha256=of_file(path, "sha256").hex, size=path.stat().st_size)
            for path in sorted(folder.iterdir())
            if path.name != "SHA256SUMS"
        }
        session = LockedSession(cpu=None, key="k", models=("m",), outputs=outputs, sharing=None)
        groups[key] = SimpleNamespace(outputs=outputs, session_groups={"m": session})
    return Lock(
        execution_providers={},
        groups=groups,
        name="demo",
        sources={},
        toolchain={},
    )


def test_a_folder_that_the_lock_does_not_have(tmp_path: Path) -> None:
    root = built(tmp_path, "demo/one/g", "elsewhere/h")
    lock = lock_of(root, "one/g")
    with pytest.raises(UsageError, match="matches no group of the lock x"):
        group_folders.match_lock(find([root / "elsewhere"]), lock, [root], where="x")
