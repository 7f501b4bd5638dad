"""`epctx validate`, and the options that EPs refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx import api
from epctx.providers.onnxruntime import packages
from epctx.providers.onnxruntime.qnn import options
from tests.kit.validating import manifest, model, told, validated


def test_what_is_found_is_in_the_order_of_the_file_and_the_first_has_the_exit_code(
    tmp_path: Path,
) -> None:
    exclude = {"op_types": ["Rellu"]}
    changes = {
        "models.a.path": "b.onnx",
        "model_groups.h": {"models": ["c"], "partition": {"exclude": exclude}},
    }
    changes |= {"models.c.path": "a.onnx", "model_groups.h.execution_providers": ["ref"]}
    found = validated(tmp_path, changes)
    paths = [violation.path for violation in found.violations]
    assert paths == ["models.a.path", "model_groups.h.partition.exclude.op_types[0]"]
    assert found.exit_code == 4


def test_the_same_of_several_targets_is_told_once(tmp_path: Path) -> None:
    changes = {"models.a.path": "b.onnx", "targets": {"one": {}, "two": {}}}
    assert len(validated(tmp_path, changes).violations) == 1


def test_the_function_gives_violations_and_warnings(tmp_path: Path) -> None:
    path = manifest(tmp_path, {"models.a.path": "b.onnx", "models.unused.path": "c.onnx"})
    found = api.validate(path)
    assert [violation.path for violation in found.violations] == ["models.a.path"]
    assert [warning.path for warning in found.warnings] == ["models.unused"]
    assert api.validate(path, models=False).violations == ()


def test_nothing_but_headers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """External data is looked for, and not read: a gigabyte takes no longer than a byte."""
    import onnx

    model(tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    (weight,) = proto.graph.initializer
    weight.ClearField("float_data")
    weight.dims[:] = [1 << 14, 1 << 14]
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    onnx.save(proto, tmp_path / "a.onnx")
    changes = {"model_groups.g.verify": {"numbers": "off"}}
    found = validated(tmp_path, changes)
    assert [violation.path for violation in found.violations] == ["models.a.path"]
    assert "w.bin" in found.violations[0].what
    with (tmp_path / "w.bin").open("wb") as sparse:
        sparse.truncate(1 << 30)
    assert told(validated(tmp_path, changes)) == ([], [])


def test_without_models_no_file_need_be_there(tmp_path: Path) -> None:
    changes = {
        "models.a.path": "b.onnx",
        "model_groups.g.verify.inputs.files": ["cases/*.npz"],
        "package.assets": {"tokenizer": "tokenizer.json"},
        "package.files": {"b.txt": "b.txt"},
        "package.genai": {"source": "models/llm"},
    }
    assert [each.path for each in validated(tmp_path, changes).violations] == [
        "model_groups.g.verify.inputs.files[0]",
        "package.assets.tokenizer",
        'package.files["b.txt"]',
        "package.genai.source",
    ]
    assert validated(tmp_path, changes, models=False).violations == ()
    changes["package.genai"] = {"source": "/models/llm"}
    (outside,) = validated(tmp_path, changes, models=False).violations
    assert outside.what == "is an absolute path"


QNN = "QNNExecutionProvider"


def entry(**given: object) -> dict[str, object]:
    return {"execution_providers.ref": {"provider": QNN, "options": given}}


@pytest.mark.needs("module onnxruntime_qnn")
def test_what_an_ep_refuses_is_told_at_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "qairt", lambda: "2.51.0")
    found = validated(tmp_path, entry(soc_model=14))
    what = "soc_model is 14, a chip that QAIRT 2.51.0 does not know"
    assert told(found)[0] == [("execution_providers.ref.options.soc_model", what)]
    assert found.exit_code == 3


def test_an_ep_that_is_not_installed_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epctx.errors import ProviderUnavailable

    def find(*args: object, **named: object) -> None:
        raise ProviderUnavailable("is not installed", remedy="install it")

    monkeypatch.setattr(packages, "find", find)
    found = validated(tmp_path, entry(soc_model=14))
    assert found.violations == ()
