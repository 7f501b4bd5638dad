"""Headers of models: what is wrong with a model, and with the sizes that the manifest gives."""

from pathlib import Path

import pytest

from tests.kit.validating import told, validated


@pytest.mark.parametrize(
    ("changes", "path", "what"),
    [
        ({"models.a.dimensions.bach": 2}, "models.a.dimensions.bach", "'bach', which is no symb"),
        ({"models.a.shapes": {"y": [1]}}, "models.a.shapes.y", "'y', which is no graph input"),
        ({"models.a.shapes": {"x": [3, 4]}}, "models.a.shapes.x", "'batch' is 2 by `dimensions"),
        ({"models.a.shapes": {"x": [2, 5]}}, "models.a.shapes.x", "dimension 1 the size 5"),
        ({"models.a.shapes": {"x": [2]}}, "models.a.shapes.x", "has 1 dimensions"),
        ({"models.a.external_data_dir": "no"}, "models.a.external_data_dir", "is not a folder"),
        ({"models.a.reference.path": "b.onnx"}, "models.a.reference.path", "b.onnx: does not exi"),
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
