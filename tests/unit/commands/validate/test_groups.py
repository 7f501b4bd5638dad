"""Groups against their models: errors where a build fails, warnings else."""

from pathlib import Path

import pytest

from epctx.graph.passes import registry
from tests.kit.validating import model, told, validated

EXCLUDE = "model_groups.g.partition.exclude"
INPUTS = "model_groups.g.verify.inputs"
QNN = {
    "execution_providers.ref": {"provider": "QNNExecutionProvider", "options": {"soc_model": 60}}
}


@pytest.mark.parametrize(
    ("changes", "path", "what", "code"),
    [
        ({f"{EXCLUDE}.op_types": ["Rellu"]}, f"{EXCLUDE}.op_types[0]", '(did you mean "Relu"?)', 3),
        ({f"{EXCLUDE}.op_types": ["own::Relu"]}, f"{EXCLUDE}.op_types[0]", "nothing in the", 3),
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
