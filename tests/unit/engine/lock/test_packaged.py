"""What the lock says of the package: a function of the manifest and the toolchain."""

from __future__ import annotations

import json
from pathlib import Path

from epctx.cache.digests import FreshDigests
from epctx.engine.lock import packaged
from epctx.files import items
from epctx.keys import Toolchain
from epctx.lockfile.types import LockedPackage
from epctx.parsing import load
from tests.kit.projects import Project


def locked(project: Project) -> LockedPackage | None:
    project.write()
    return packaged.locked(load.load(project.manifest), Toolchain(FreshDigests()))


def test_what_is_said_of_one_ep_in_two_ways_has_two_names(project: Project) -> None:
    """Two reference EPs of one group differ in the nodes that are theirs."""
    project.section("execution_providers")["second"] = {
        "provider": "ReferenceExecutionProvider",
        "options": {"source": "second"},
    }
    project.section("model_groups", "g")["execution_providers"] = ["ref", "second"]
    found = locked(project)
    assert found is not None
    names = ("ReferenceExecutionProvider", "ReferenceExecutionProvider#2")
    assert found.variants[0].execution_providers == names
    assert [found.execution_providers[name].sources for name in names] == [
        ("reference",),
        ("second",),
    ]


def test_what_is_said_of_qnn_is_what_a_device_is_told(project: Project) -> None:
    project.section("execution_providers")["ref"] = {
        "provider": "QNNExecutionProvider",
        "options": {"soc_model": "60", "htp_performance_mode": "burst"},
    }
    found = locked(project)
    assert found is not None
    runtime = found.execution_providers["QNNExecutionProvider"]
    assert (runtime.device, runtime.native) == ("npu", True)
    assert runtime.options == {"htp_performance_mode": "burst"}


def test_the_manifests_own_files_by_digest(project: Project, tmp_path: Path) -> None:
    folder = project.folder
    (folder / "tok").mkdir()
    (folder / "tok" / "vocab.txt").write_bytes(b"words")
    (folder / "genai_config.json").write_text('{"model": {}}', encoding="utf-8")
    project.document["package"] = {
        "version": "1.2.0",
        "assets": {"tokenizer": "tok"},
        "files": {"genai_config.json": "genai_config.json"},
        "genai": {"tokenizer": "tokenizer"},
    }
    found = locked(project)
    assert found is not None and (found.version, found.component) == ("1.2.0", "model")
    assert found.assets["tokenizer"]["vocab.txt"].sha256 == items.made(b"words").sha256.hex
    manifest = load.load(project.manifest)
    beside = packaged.brought(manifest).files["default/g"]["genai_config.json"]
    assert found.variants[0].files["genai_config.json"].sha256 == beside.sha256.hex
    asset = items.digest_of(items.below(folder / "tok"))
    assert json.loads(beside.content)["model"]["tokenizer_dir"] == str(asset)
    assert set(packaged.paths(manifest)) == {folder / "tok", folder / "genai_config.json"}
