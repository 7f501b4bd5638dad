"""Models and groups against the headers of the models."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.graph.passes import registry
from tests.kit.validating import model, told, validated


@pytest.mark.parametrize(
    ("changes", "path", "what"),
    [
        (
            {"models.a.dimensions.bach": 2},
            "models.a.dimensions.bach",
            "'bach', which is not a symb",
        ),
        ({"models.a.shapes": {"y": [1]}}, "models.a.shapes.y", "'y', which is not a graph input"),
        ({"models.a.shapes": {"x": [3, 4]}}, "models.a.shapes.x", "'batch' is 2 by `dimensions"),
        ({"models.a.shapes": {"x": [2, 5]}}, "models.a.shapes.x", "dimension 1 the size 5"),
        ({"models.a.shapes": {"x": [2]}}, "models.a.shapes.x", "has 1 dimensions"),
        ({"models.a.external_data_dir": "no"}, "models.a.external_data_dir", "is not a folder"),
        ({"models.a.reference.path": "b.onnx"}, "models.a.reference.path", "b.onnx: does not exi"),
        ({"models.a.custom_ops": "b.so"}, "models.a.custom_ops", "b.so: cannot be opened: No such"),
    ],
)
def test_what_does_not_fit_is_told_at_its_key(
    tmp_path: Path, changes: dict[str, object], path: str, what: str
) -> None:
    found = validated(tmp_path, changes)
    ((place, words),) = told(found)[0]
    assert place == path
    assert what in words
    assert found.exit_code == 4
    assert all(violation.line and violation.column for violation in found.violations)


def test_everything_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    found = validated(
        tmp_path, {"models.a.dimensions": {"b": 1, "c": 1}, "models.a.shapes": {"d": [1]}}
    )
    assert [path for path, _ in told(found)[0]] == [
        "models.a.dimensions.b",
        "models.a.dimensions.c",
        "models.a.shapes.d",
    ]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"\x08\x08\xff\xff\xff", "is not an ONNX model, or is damaged"),
    ],
)
def test_a_file_that_is_no_model_is_told(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    found = validated(tmp_path, {})
    assert what in found.violations[0].what
    assert found.exit_code == 4


def test_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_MODEL_NODES", "1")
    assert "has 2 nodes, more than 1" in validated(tmp_path, {}).violations[0].what


EXCLUDE = "model_groups.g.partition.exclude"
INPUTS = "model_groups.g.verify.inputs"
QNN = {
    "execution_providers.ref": {"provider": "QNNExecutionProvider", "options": {"soc_model": 60}}
}


@pytest.mark.parametrize(
    ("changes", "path", "what", "code"),
    [
        ({f"{EXCLUDE}.op_types": ["Rellu"]}, f"{EXCLUDE}.op_types[0]", '(did you mean "Relu"?)', 3),
        ({f"{EXCLUDE}.op_types": ["own::Relu"]}, f"{EXCLUDE}.op_types[0]", "no node of the", 3),
        ({f"{EXCLUDE}.nodes": ["/act/*", "/hed/*"]}, f"{EXCLUDE}.nodes[1]", '"/hed/*"', 3),
        ({f"{INPUTS}.ranges": {"xx": [0, 1]}}, f"{INPUTS}.ranges.xx", "is no input of any", 3),
        ({f"{INPUTS}.dimensions": {"batch": 1}}, f"{INPUTS}.dimensions.batch", "leaves open", 3),
        ({f"{INPUTS}.files": ["b.npz"]}, f"{INPUTS}.files[0]", "b.npz: does not exist", 4),
        ({"models.a.dimensions": {}, **QNN}, "models.a", "of unknown size: batch", 4),
    ],
)
def test_what_a_build_fails_for_is_an_error(
    tmp_path: Path, changes: dict[str, object], path: str, what: str, code: int
) -> None:
    found = validated(tmp_path, changes)
    ((place, words),) = told(found)[0]
    assert place == path
    assert what in words
    assert found.exit_code == code


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({f"{EXCLUDE}.op_types": ["TopK"]}, f"{EXCLUDE}.op_types[0]"),
        ({f"{EXCLUDE}.op_types": ["com.microsoft::Gelu"]}, f"{EXCLUDE}.op_types[0]"),
        ({f"{EXCLUDE}.nodes": ["*/made"]}, f"{EXCLUDE}.nodes[0]"),
        (
            {f"{INPUTS}.ranges": {"xx": [0, 1]}, "model_groups.g.verify.numbers": "off"},
            f"{INPUTS}.ranges.xx",
        ),
    ],
)
def test_what_a_build_may_take_is_a_warning(
    tmp_path: Path, changes: dict[str, object], path: str
) -> None:
    found = validated(tmp_path, changes)
    assert [place for place, _ in told(found)[1]] == [path]
    assert (found.violations, found.exit_code) == ((), 0)


def test_what_passes_of_others_make_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {f"{EXCLUDE}.nodes": ["/hed/*"], "model_groups.g.optimize.level": ["split-norms"]}
    assert validated(tmp_path, changes).exit_code == 3
    monkeypatch.setattr(registry, "is_built_in", lambda name: False)
    assert [path for path, _ in told(validated(tmp_path, changes))[1]] == [f"{EXCLUDE}.nodes[0]"]


def test_what_inlined_functions_will_have_is_not_missed(tmp_path: Path) -> None:
    model(tmp_path / "a.onnx", function=True)
    exclude = {"op_types": ["Relu"], "nodes": ["/hed/*"]}
    violations, warnings = told(validated(tmp_path, {EXCLUDE: exclude}))
    assert violations == []
    assert [path for path, _ in warnings] == [f"{EXCLUDE}.nodes[0]"]


def test_an_entry_that_one_model_of_the_group_has_is_right(tmp_path: Path) -> None:
    model(tmp_path / "b.onnx", function=True)
    changes = {
        "models.b": {"path": "b.onnx", "dimensions": {"batch": 1}},
        "model_groups.g.models": ["a", "b"],
        f"{EXCLUDE}.nodes": ["/act/Relu"],
    }
    assert told(validated(tmp_path, changes)) == ([], [])


def test_what_a_model_that_cannot_be_read_may_have_is_not_missed(tmp_path: Path) -> None:
    changes = {
        "models.b": {"path": "b.onnx"},
        "model_groups.g.models": ["a", "b"],
        f"{EXCLUDE}.op_types": ["Rellu"],
        f"{INPUTS}.ranges": {"xx": [0, 1]},
    }
    assert [path for path, _ in told(validated(tmp_path, changes))[0]] == ["models.b.path"]


def test_open_sizes_are_an_epss_matter(tmp_path: Path) -> None:
    assert told(validated(tmp_path, {"models.a.dimensions": {}})) == ([], [])
