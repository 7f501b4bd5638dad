"""The lists of what epctx builds, on the manifest that needs no vendor SDK."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from scripts import baseline
from scripts.baseline import Built
from tests.zoo import __main__ as zoo

NAME, EYE = "manifests/quickstart", "manifests/quickstart/default/eye"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "FOLDER", tmp_path_factory.mktemp("zoo"))
        return baseline.build_entry(NAME)[0]


def compare(old: list[Built], new: list[Built]) -> tuple[list[str], baseline.Lists]:
    """Return the lines that are told, without counts, and the lists to write."""
    stored = baseline.lists(old)
    del stored["absent"]
    told, written = baseline.compare(stored, baseline.lists(new))
    return [line for line in told if not line.endswith("equal")], written


def changed(built: Built, ep_host: str = "", **values: Any) -> Built:
    """Change what the report says of the group `eye`, and of the host what the lock does."""
    report, lock = copy.deepcopy((dict(built.report), dict(built.lock)))
    report["groups"][1] |= values
    (ep,) = lock["execution_providers"].values()
    ep["host"] = {"cpu": ep_host} if ep_host else {}
    return built._replace(report=report, lock=lock)


def test_every_output_lock_and_verdict_has_its_line(built: Built) -> None:
    lists = baseline.lists([built])
    files = ("eye/vision_ctx.onnx", "llm/decode_ctx.onnx", "llm/prefill_ctx.onnx")
    paths = [f"{NAME}/default/{file}" for file in (*files, "llm/prefill_reference.bin")]
    assert sorted(line.rpartition(" ")[0] for line in lists["bytes"]) == [f"{NAME} lock", *paths]
    assert f"{EYE} vision coverage: 1.0 of 65; 1 EPContext, 0 other nodes" in lists["verdicts"]
    assert {f"{EYE} built", f"{EYE} vision_ctx.onnx numbers outputs: pass"} <= lists["verdicts"]
    assert compare([built], [built])[0] == []
    unstable = [built.report["groups"][1]["models"][0] | {"unstable": ["why"]}]
    outputs = baseline.lists([changed(built, models=unstable)])["bytes"]
    assert len(outputs) == 4 and not any("vision" in line for line in outputs)


def test_a_changed_byte_a_lost_file_and_a_changed_verdict_are_told(built: Built) -> None:
    digests = {**built.digests, "default/eye/vision_ctx.onnx": "0"}
    lost = digests.pop("default/llm/prefill_reference.bin")
    new = changed(built, state="failed", failure={"code": "E0701"})._replace(digests=digests)
    told, written = compare([built], [new])
    assert told == [
        f"+ {EYE}/vision_ctx.onnx 0",
        f"- {EYE}/vision_ctx.onnx {built.digests['default/eye/vision_ctx.onnx']}",
        f"- {NAME}/default/llm/prefill_reference.bin {lost}",
        f"- {EYE} built",
        f"+ {EYE} failed E0701",
    ]
    assert len(written["bytes"]) == 4


def test_a_lock_is_compared_without_keys(built: Built) -> None:
    new = changed(built)
    model = new.lock["groups"]["default/eye"]["models"]["vision"]
    model["key"] = new.lock["toolchain"]["epctx"] = new.lock["toolchain"]["epctx/compile"] = "x"
    assert compare([built], [new])[0] == []
    model["optimized"] = "x"
    assert [line[:10] for line in compare([built], [new])[0]] == ["+ manifest", "- manifest"]


def test_other_hosts_are_not_compared_and_keep_their_lines(built: Built) -> None:
    intel, other = changed(built, ep_host="one"), changed(built, ep_host="two")
    told, written = compare([intel], [other])
    assert all(line[0] == "+" and " [host-" in line for line in told) and len(told) == 78
    assert len(written["bytes"]) == 10
    groups = [{**each, "failure": {"code": "E0502"}} for each in built.report["groups"]]
    told, written = compare([built], [built._replace(report={"groups": groups}, lock={})])
    names = (" lock", "/default/eye", "/default/llm")
    assert told == [f"no device: {NAME}{name}" for name in names] and len(written["bytes"]) == 5


def test_another_source_is_told_and_its_outputs_are_not_compared(built: Built) -> None:
    name = "zoo/bert.dynamo"
    old, new = (
        [Built(name, digests={"source": s}), built._replace(name=f"{name}/qnn")] for s in "12"
    )
    new[1] = changed(new[1], state="failed")._replace(digests={}, lock={})
    assert compare(old, new)[0] == [
        f"another source, so outputs are not compared: {name}",
        f"- {name}/qnn/default/eye built",
        f"+ {name}/qnn/default/eye failed",
    ]


def test_the_exit_code_tells_whether_lines_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end = ["exit code 3"]
    monkeypatch.setattr(baseline, "LISTS", tmp_path)
    monkeypatch.setattr(baseline, "entries", lambda: ["manifests/a", "zoo/b"])
    monkeypatch.setattr(baseline, "build_entry", lambda name: [Built(name, end[0])])
    for name in ("bytes", "verdicts"):
        (tmp_path / f"{name}.txt").touch()
    assert [baseline.main(a) for a in ([], ["--write"], [], ["--only", "zoo/*"])] == [1, 0, 0, 0]
    end[0] = "exit code 1"
    assert baseline.main(["--only", "zoo/*", "--write"]) == 0
    written = (tmp_path / "verdicts.txt").read_text(encoding="utf-8")
    assert written == "manifests/a exit code 3\nzoo/b exit code 1\n"
    with pytest.raises(SystemExit):
        baseline.main(["--only", "no-such-entry"])
