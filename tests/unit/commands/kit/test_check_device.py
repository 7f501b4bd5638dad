"""The script that a kit has for devices: plain Python, and how it compares."""

import ast
import hashlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epctx.cli import streams
from epctx.commands.kit import check_device
from epctx.commands.kit.check_device import Checking, Problem, path_from, values

FLOATS = {"cosine_min": 0.99, "max_rel": 0.01}


def test_it_is_python_3_9_and_imports_nothing_that_a_device_lacks() -> None:
    tree = ast.parse(inspect.getsource(check_device), feature_version=(3, 9))
    found = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    assert found <= set(sys.stdlib_module_names)


def test_it_knows_the_commands_of_ci_systems_that_epctx_knows() -> None:
    assert check_device.COMMAND == streams.COMMAND


def test_no_text_of_a_kit_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "::error::owned\n--- owned ##vso[task.complete]\x1b[2J"
    model = {"name": hostile, "sdk": [], "file": "m", "files": ["kit.json"], "golden": "kit.json"}
    kit_set = {"models": [model], "eps": [], "why_not": hostile}
    record = json.dumps({"built_with": {}, "expect_driver": hostile, "sets": [kit_set]}).encode()
    monkeypatch.setattr(check_device, "KIT", tmp_path.resolve())
    monkeypatch.setattr(sys, "argv", ["check_device.py", "--out", str(tmp_path / "device.json")])
    for content in (record, b'{"sets": ' + b"[" * 100_000):
        (tmp_path / "kit.json").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        (tmp_path / "SHA256SUMS").write_text(f"{digest}  kit.json\n")
        assert check_device.main() == 1
    out, err = capsys.readouterr()
    assert "FAILED: kit.json: RecursionError('maximum recursion depth" in err
    for line in (out + err).splitlines():
        assert not line.startswith(("::", "--- ")) and "##vso[" not in line and "\x1b" not in line
    assert (out + err).count("##vso\\u005btask.complete]") == 4
    assert json.loads((tmp_path / "device.json").read_text())["expect_driver"] == hostile


def compare(right: Any, found: Any, **limits: float) -> str | None:
    checking = object.__new__(Checking)
    checking.np = np
    told: str | None = checking.compare(
        np.asarray(right), None if found is None else np.asarray(found), limits
    )["problem"]
    return told


@pytest.mark.parametrize(
    ("right", "found", "limits", "told"),
    [
        ([1.0, 2.0], [1.0, 2.0], {}, None),
        ([1.0, 2.0], [1.0, 2.001], FLOATS, None),
        ([1.0, 2.0], [1.0, 2.001], {}, "it is not equal"),
        ([1.0, 2.0], [1.0, 2.1], FLOATS, "max_rel 0.05"),
        ([1.0, 2.0], [2.0, -1.0], {"cosine_min": 0.99}, "cosine_min 0"),
        ([0.0, 0.0], [0.0, 1e-9], FLOATS, "it is not equal"),
        ([0.0, 0.0], [0.0, 1e-9], {"cosine_min": 0.9}, "it is not equal"),
        ([0.0, 0.0], [0.0, 1e-9], {"max_abs": 1e-6, "cosine_min": 0.9}, None),
        ([1.0, 2.0], [0.0, -0.0], {"cosine_min": 0.9, "max_rel": 1.5}, "zero throughout"),
        ([1.0, 2.0], [0.0, 0.0], {"max_abs": 9.0}, "zero throughout"),
        ([0.0, -0.0], [0.0, 0.0], FLOATS, None),
        ([1, 0], [0, 0], {"max_abs": 1.0}, None),
        ([1.0, np.nan], [1.0, np.nan], {}, None),
        ([1.0, np.nan], [1.0, 2.0], FLOATS, "NaN"),
        ([1.0, np.inf], [1.0, -np.inf], FLOATS, "infinities"),
        ([1.0, -1e9], [1.0, -65536.0], {**FLOATS, "saturates_at": 65504.0}, None),
        ([1e308, 1e308], [1e308, 1e308 * 0.999], FLOATS, None),
        ([1.0, 2.0], [1.1, 2.2], {"max_rel": 0.2, "gain_max": 0.04}, "gain_max 0.1"),
        ([1.0, 2.0], [1.1, 2.2], {"max_rel": 0.2, "gain_max": None}, None),
        ([2e-4, 1e-4], [0.0, 0.0], {**FLOATS, "floor": 0.01}, None),
        ([0.9, 1e-4], [0.9, 0.02], {**FLOATS, "floor": 0.01}, "max_rel"),
        ([1, 2], [1, 3], {}, "it is not equal"),
        ([1, 2], [1, 3], {"max_abs": 1.0}, None),
        ([2**60], [2**60 + 1], {}, "it is not equal"),
        ([1.0], [[1.0]], FLOATS, "not float64[1]"),
        ([1.0], [1], FLOATS, "it is int64"),
        ([True], [False], {}, "it is not equal"),
        (["a"], ["a"], {}, None),
        ([], [], {}, None),
        ([1.0], None, FLOATS, "it is missing"),
    ],
)
def test_an_output_is_compared(right: Any, found: Any, limits: Any, told: str | None) -> None:
    problem = compare(right, found, **limits)
    assert problem is None if told is None else told in (problem or "")


def test_a_row_of_numbers_is_json_whatever_the_numbers() -> None:
    checking = object.__new__(Checking)
    checking.np = np
    row = checking.compare(np.array([1e200]), np.array([-1e200]), {"max_rel": 1.0})
    assert row["cosine"] == -1.0 and row["max_rel"] == 2.0


def test_sequences_have_the_names_that_golden_files_have() -> None:
    checking = object.__new__(Checking)
    checking.np = np
    x = np.ones(2, np.float32)
    found = dict(checking.flat(["x", "s", "none"], [x, [x, x], []]))
    assert found.keys() == {"x", "s[0]", "s[1]", "none[]"} and found["none[]"].size == 0


def test_values_that_numpy_does_not_know_are_told() -> None:
    with pytest.raises(Problem, match="bfloat16"):
        values(np.zeros(2, "V2"))
    assert values(np.array(["x"])).dtype == object


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("os", "get_terminal_path"),
        ("onnxruntime_qnn.x", "get_library_path"),
        ("onnxruntime_qnn", "system"),
    ],
)
def test_a_kit_cannot_have_any_function_called(module: str, function: str) -> None:
    with pytest.raises(Problem, match="which is not a function of an EP"):
        path_from({"ep": "X", "module": module, "package": "x"}, function)


def test_a_package_that_is_not_there_is_named() -> None:
    ep = {"ep": "X", "module": "onnxruntime_of_nobody", "package": "onnxruntime-of-nobody"}
    with pytest.raises(Problem, match="run `pip install onnxruntime-of-nobody`"):
        path_from(ep, "get_library_path")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "link"])
def test_no_name_leads_out_of_the_kit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    (tmp_path / "x").touch()
    if name == "link":
        (kit / "link").symlink_to(tmp_path / "x")
    monkeypatch.setattr(check_device, "KIT", kit.resolve())
    assert check_device.place(name) is None
    assert check_device.place("a/b") == kit.resolve() / "a" / "b"
