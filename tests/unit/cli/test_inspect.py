from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner, Result

from epctx.cli.app import app
from tests.kit import folders


def inspect(path: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["inspect", str(path), *options])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = [numpy_helper.from_array(np.zeros((100, 100), np.float32), "w")]
    node = folders.context_node(is_odd=1)
    return folders.write(tmp_path, folders.model(node, initializers=weights), sums=False)


def test_a_model_in_words(folder: Path) -> None:
    printed = inspect(folder / "m_ctx.onnx").stdout
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in (
        "format IR version 10; opsets ai.onnx 20, com.microsoft 1",
        "inputs x float32[1, 4]",
        "outputs z float32[1, 4]",
        "default EP 1 node: Relu",
        "initializers 1 tensor, 40.0 kB (40,000 bytes) inside",
        "main_0 EPContext node",
        "source reference",
        "context m_reference.bin",
        "not in the op schema is_odd",
        "m_reference.bin context binary of the reference EP, format 1, 4.1 kB (4,096 bytes)",
    ):
        assert line in lines, printed


def test_names_and_metadata_are_no_commands_to_a_ci_system(folder: Path) -> None:
    model = onnx.load(folder / "m_ctx.onnx")
    model.metadata_props.add(key="##vso[task.complete]", value="##teamcity[buildStop]")
    onnx.save(model, folder / "m_ctx.onnx")
    in_words = inspect(folder / "m_ctx.onnx").stdout
    as_json = inspect(folder / "m_ctx.onnx", "--format=json").stdout
    for printed in (in_words, as_json):
        assert "##vso\\u005btask.complete]" in printed and "##vso[" not in printed
        assert "##teamcity\\u005b" in printed and "##teamcity[" not in printed
    metadata = json.loads(as_json)["model"]["metadata"]
    assert metadata["##vso[task.complete]"] == "##teamcity[buildStop]"


def test_a_binary_of_a_format_that_nobody_knows_is_said_to_be_one(folder: Path) -> None:
    (folder / "m_reference.bin").write_bytes(b"odd" * 100)
    printed = " ".join(inspect(folder / "m_ctx.onnx").stdout.split())
    assert "m_reference.bin context binary, 300 B no installed EP knows its format" in printed


def test_a_binary_that_its_ep_cannot_read_is_7_after_what_is_known(folder: Path) -> None:
    binary = next(folder.glob("*.bin"))
    content = bytearray(binary.read_bytes())
    content[300] ^= 0xFF
    binary.write_bytes(content)
    for path in (binary, next(folder.glob("*_ctx.onnx"))):
        result = inspect(path)
        assert result.exit_code == 7
        assert result.stdout.startswith(path.name)
        assert "is damaged: " in result.stderr
        assert json.loads(inspect(path, "--format=json").stdout)


def test_files_are_one_a_line_for_scripts(folder: Path) -> None:
    result = inspect(folder / "m_ctx.onnx", "--files")
    assert result.stdout.splitlines() == [
        (folder / name).as_posix() for name in ("m_ctx.onnx", "m_reference.bin")
    ]
    as_json = json.loads(inspect(folder / "m_ctx.onnx", "--files", "--format", "json").stdout)
    assert [each["name"] for each in as_json] == ["m_ctx.onnx", "m_reference.bin"]


def test_a_file_that_cannot_be_shipped_is_7(folder: Path) -> None:
    (folder / "m_reference.bin").unlink()
    result = inspect(folder / "m_ctx.onnx", "--files")
    assert result.exit_code == 7
    assert "needs the context binary 'm_reference.bin'" in result.stderr
    assert "it does not exist" in inspect(folder / "m_ctx.onnx").stdout


def test_what_is_no_model_is_4_and_what_is_not_there_2(folder: Path) -> None:
    (folder / "odd.bin").write_bytes(b"odd")
    assert inspect(folder / "odd.bin").exit_code == 4
    assert inspect(folder / "gone").exit_code == 2
