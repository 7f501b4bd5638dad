"""A plan as a CI system's matrix, of the manifests that come with epctx and their locks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from epctx.commands.plan import Shard, _shares, matrix
from epctx.engine import plan

ROOT = Path(__file__).parents[4]
PROVIDERS = {"q": "QNNExecutionProvider", "o": "OpenVINOExecutionProvider"}


def shards(manifest: str, **settings: int) -> tuple[Shard, ...]:
    found = plan.read(ROOT / "manifests" / f"{manifest}.yaml")
    return matrix(found, **settings).include


def written(folder: Path, lock: str | None = None) -> Path:
    """Six groups for QNN, two for OpenVINO, one for both; a lock under its name."""
    (folder / "m.onnx").write_bytes(b"")
    eps = {
        "q": {"provider": PROVIDERS["q"], "options": {"soc_model": "60"}},
        "o": {"provider": PROVIDERS["o"]},
    }
    wanted = {f"q{n}": ["q"] for n in range(6)} | {f"o{n}": ["o"] for n in range(2)}
    groups = {
        name: {"models": ["m"], "execution_providers": names}
        for name, names in (wanted | {"both": ["o", "q"]}).items()
    }
    document = {"models": {"m": {"path": "m.onnx"}}, "execution_providers": eps}
    document |= {"schema_version": 1, "name": "m", "model_groups": groups}
    (folder / "m.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    if lock is not None:
        shutil.copy(ROOT / "manifests" / f"{lock}.lock.yaml", folder / "m.lock.yaml")
    return folder / "m.yaml"


def test_a_shard_is_a_group_for_a_target() -> None:
    found = shards("qnn")
    assert [each.only for each in found] == ["llm@default", "eye@default"]
    assert {each.eps for each in found} == {"QNNExecutionProvider"}
    assert {each.extras for each in found} == {"qnn"}


@pytest.mark.parametrize(
    ("manifest", "cpu"), [("qnn", "any"), ("openvino", "GenuineIntel family 6 model 85")]
)
def test_the_lock_says_which_system_and_which_cpu(manifest: str, cpu: str) -> None:
    assert {(each.os, each.machine, each.cpu) for each in shards(manifest)} == {
        ("linux", "x86_64", cpu)
    }


def test_the_reference_ep_wants_nothing() -> None:
    assert {(each.os, each.machine, each.cpu) for each in shards("quickstart")} == {("any",) * 3}


def test_without_a_lock_the_ep_says_it(tmp_path: Path) -> None:
    found = {each.group: each for each in matrix(plan.read(written(tmp_path))).include}
    assert (found["q0"].os, found["q0"].cpu) == ("linux,windows", "any")
    assert (found["both"].cpu, found["both"].extras) == ("GenuineIntel", "openvino,qnn")


def test_groups_that_want_the_same_host_share(tmp_path: Path) -> None:
    planned = plan.read(written(tmp_path))
    found = matrix(planned, shards=5).include
    assert [each.only.count("@") for each in found] == [2, 2, 2, 2, 1]
    named = {label for each in found for label in each.only.split(",")}
    assert named == {group.label for group in planned.groups}
    assert [plan.read(planned.manifest.path, only=[s.only]).whole for s in found] == [False] * 5


def test_hosts_that_differ_never_share(tmp_path: Path) -> None:
    found = matrix(plan.read(written(tmp_path)), shards=1).include
    assert [each.only.count("@") for each in found] == [6, 2, 1]


def test_no_shard_is_empty() -> None:
    assert _shares([2, 1], 9) == [2, 1]
