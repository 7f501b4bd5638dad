"""`epctx init`: what it prints, where, and its exit codes."""

import json
from pathlib import Path

import onnx
import pytest
import yaml
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.cli.render import UI
from epctx.commands.doctor.probe import ProviderDiagnosis
from epctx.commands.init import options as choice
from epctx.parsing import load

pytestmark = pytest.mark.usefixtures("fixed")
runner = CliRunner()
OUT = ("--out", "m.yaml")
REFERENCE = ("--provider", "ReferenceExecutionProvider")


@pytest.fixture
def fixed(folder: Path) -> None:
    """The folder, with a model of one shape: sizes are searched for in test_sizes.py."""
    model = onnx.load(folder / "a.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(model, folder / "a.onnx")


def test_init_writes_a_manifest_that_validates() -> None:
    result = runner.invoke(
        app,
        ["init", "a.onnx", "a.onnx", "--share", *REFERENCE, "--option", "source=npu", *OUT],
    )
    assert (result.exit_code, result.stdout) == (0, "wrote m.yaml\n")
    assert "next: epctx build m.yaml" in result.stderr
    assert runner.invoke(app, ["validate", "m.yaml"]).exit_code == 0


def test_init_in_json() -> None:
    result = runner.invoke(app, ["init", "a.onnx", *REFERENCE, "--format", "json"])
    assert json.loads(result.stdout) == {"manifest": "epctx.yaml", "provider": REFERENCE[1]}


def test_init_needs_force_to_replace() -> None:
    again = ["init", "a.onnx", *REFERENCE, "--out", "good.yaml"]
    result = runner.invoke(app, again)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert runner.invoke(app, [*again, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--option", "source"], 2, "write it as --option NAME=VALUE"),
        (["--option", "=x"], 2, "write it as --option NAME=VALUE"),
        (["--option", "source=a", "--option", "source=b"], 2, "gives source twice: a and b"),
        (["--dimension", "batch=0"], 2, "'0' is not a size"),
        (["--dimension", "bach=1"], 2, 'no model has an open dimension "bach"'),
        (["--shape", "x=3,y"], 2, "write sizes of at least 1, as --shape x=1"),
        (["--shape", "z=3,4"], 2, 'no model has an input "z"'),
        ([*REFERENCE, "--option", "sorce=x"], 3, 'did you mean "source"?'),
        (["--provider", "QNN"], 3, 'did you mean "QNNExecutionProvider"?'),
        (["--share"], 2, "two models"),
        (["none.onnx"], 2, "none.onnx"),
        (["god.yaml"], 2, "is no model\n  -> name the new manifest with --out god.yaml\n"),
    ],
)
def test_init_refuses(arguments: list[str], code: int, told: str) -> None:
    provider = () if "--provider" in arguments else REFERENCE
    result = runner.invoke(app, ["init", "a.onnx", *provider, *arguments])
    assert result.exit_code == code
    assert told in result.stderr


def test_without_a_model_it_says_how_to_get_one() -> None:
    result = runner.invoke(app, ["init"])
    assert result.exit_code == 2 and "--example" in result.stderr
    result = runner.invoke(app, ["init", "a.onnx", "--example"])
    assert result.exit_code == 2 and "its own model" in result.stderr


def test_an_example_is_a_model_and_a_manifest_that_validates(tmp_path: Path) -> None:
    result = runner.invoke(app, ["init", "--example", *REFERENCE])
    assert (result.exit_code, result.stdout) == (0, "wrote digits.onnx\nwrote epctx.yaml\n")
    assert "next: epctx build epctx.yaml" in result.stderr
    assert runner.invoke(app, ["validate"]).exit_code == 0
    again = runner.invoke(app, ["init", "--example", *REFERENCE])
    assert again.exit_code == 2 and "use it: `epctx init digits.onnx`" in again.stderr


def test_the_command_that_follows_is_one_for_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    (tmp_path / "a.onnx").rename(folder / "a.onnx")
    result = runner.invoke(
        app, ["init", "my models/a.onnx", *REFERENCE, "--out", "my models/m.yaml"]
    )
    assert "next: epctx build 'my models/m.yaml'" in result.stderr


def test_the_ep_that_is_taken_is_told_with_what_is_rarely_left_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = (
        ProviderDiagnosis(name="QNNExecutionProvider", package="p", state="ready", versions={}),
    )
    monkeypatch.setattr(choice, "installed", lambda: found)
    result = runner.invoke(app, ["init", "a.onnx"])
    assert result.exit_code == 0
    assert result.stderr.startswith("for QNNExecutionProvider; --provider names another\n")
    assert "without soc_model the context is for any chip" in result.stderr
    assert "--option soc_model=" in result.stderr and "Snapdragon X Elite" in result.stderr
    text = Path("epctx.yaml").read_text(encoding="utf-8")
    assert "# without soc_model the context is for any chip" in text
    chosen = ["--option", "soc_model=snapdragon x elite", "--out", "chip.yaml"]
    result = runner.invoke(app, ["init", "a.onnx", *chosen])
    assert result.exit_code == 0 and "without" not in result.stderr
    (spec,) = load.load(Path("chip.yaml")).targets[0].groups[0].execution_providers
    assert spec.options == {"soc_model": "sc8380xp"}


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        ("\n", None),
        ("X Elite\n", "X Elite"),
        ("2\n", "Snapdragon X Elite"),
        ("pentium\n8 elite\n", "8 elite"),
        ("60\n", "60"),
    ],
)
def test_a_chip_is_asked_for_until_it_is_one(
    monkeypatch: pytest.MonkeyPatch, answers: str, written: str | None
) -> None:
    monkeypatch.setattr(UI, "asks", True)
    asked = ["init", "a.onnx", "--provider", "QNNExecutionProvider"]
    result = runner.invoke(app, asked, input=answers)
    assert result.exit_code == 0, result.stderr
    assert " 2  Snapdragon X Elite  sc8380xp" in result.stderr
    assert ("pentium" in answers) == ('is "pentium"' in result.stderr)
    document = yaml.safe_load(Path("epctx.yaml").read_text(encoding="utf-8"))
    options = document["execution_providers"]["qnn"].get("options", {})
    assert options.get("soc_model") == written


def test_sizes_are_asked_for_and_guesses_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load("a.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, "a.onnx")
    monkeypatch.setattr(UI, "asks", True)
    result = runner.invoke(app, ["init", "a.onnx", *REFERENCE], input="none\n7\n")
    assert "Size of 'batch' [1]" in result.stderr and "at least 1, or press Enter" in result.stderr
    text = Path("epctx.yaml").read_text(encoding="utf-8")
    assert "dimensions: {batch: 7}" in text and "guessed" not in text
    guess = [*REFERENCE, "--yes", "--force"]
    assert runner.invoke(app, ["init", "a.onnx", *guess]).exit_code == 0
    text = Path("epctx.yaml").read_text(encoding="utf-8")
    assert "dimensions: {batch: 1}" in text and "guessed: [batch]" in text
    assert runner.invoke(app, ["init", "a.onnx", "--dimension", "batch=3", *guess]).exit_code == 0
    text = Path("epctx.yaml").read_text(encoding="utf-8")
    assert "dimensions: {batch: 3}" in text and "guessed" not in text


def test_an_example_leaves_nothing_where_its_manifest_cannot_be_written() -> None:
    Path("epctx.yaml").write_text("mine", encoding="utf-8")
    assert runner.invoke(app, ["init", "--example", *REFERENCE]).exit_code == 2
    assert runner.invoke(app, ["init", "--example", "--option", "no=1", *OUT]).exit_code == 3
    assert not Path("digits.onnx").exists()
    assert Path("epctx.yaml").read_text(encoding="utf-8") == "mine"
