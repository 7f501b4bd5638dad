"""`epctx init`: the starter manifest, for float and integer models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from epctx import api
from epctx.commands.init import command, sizes
from epctx.commands.init import command as init
from epctx.commands.init.options import REFERENCE, SizeOptions
from epctx.commands.init.sizes import Sized
from epctx.errors import ManifestError, ModelError, StorageError, UsageError
from epctx.graph.inputs import InputSpec
from epctx.parsing import load
from epctx.parsing.document import build, reader
from epctx.verification.numbers.sizes import open_names
from scripts import bundled_schema
from tests.kit.building import mlp


def model(path: Path, *shape: int | str | None, name: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
    target = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", [source], [target])
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.fixture
def no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models run at no size that was tried, so sizes are proposed in comments."""

    def find(
        model: Path, proto: onnx.ModelProto, inputs: Sequence[InputSpec], size_options: SizeOptions
    ) -> Sized:
        found = dict.fromkeys(open_names(inputs), 1)
        return Sized(sizes=found, guessed=tuple(found), runs=False, why="it does\nnot fit")

    monkeypatch.setattr(sizes, "find", find)


def test_it_is_valid_and_loads(tmp_path: Path) -> None:
    one = model(tmp_path / "models" / "one.onnx", 1, 3)
    path = init.write([one], tmp_path / "epctx.yaml")
    loaded = load.load(path)
    (group,) = loaded.targets[0].groups
    assert loaded.name == "one"
    assert [m.path for m in group.models] == [one]
    assert [spec.provider for spec in group.execution_providers] == [REFERENCE]


@pytest.mark.usefixtures("no_sizes")
def test_what_is_commented_is_valid_too(tmp_path: Path) -> None:
    models = [model(tmp_path / "a.onnx", "batch", None), model(tmp_path / "b.onnx", "batch", 4)]
    path = init.write(models, tmp_path / "epctx.yaml")
    lines = path.read_text(encoding="utf-8").splitlines()
    proposed = [line.replace("# ", "", 1) for line in lines if line.lstrip().startswith("# ")]
    settings = [
        line for line in proposed if line.startswith("    ") and (": {" in line or ": [" in line)
    ]
    assert {line.split(":")[0].strip() for line in settings} == {
        "dimensions", "shapes", "guessed", "options", "sharing_groups", "optimize", "partition",
        "verify",
    }  # fmt: skip
    text = "\n".join(
        line.replace("# ", "", 1) if line.replace("# ", "", 1) in settings else line
        for line in lines
    )
    path.write_text(text, encoding="utf-8")
    (group,) = load.load(path).targets[0].groups
    assert group.models[0].dimensions == {"batch": 1}
    assert group.models[0].shapes == {"x": (1, 1)}
    assert group.models[0].guessed == ("batch", "x")
    assert group.sharing_groups == {"main": ("a", "b")}
    assert group.partition.require_coverage == 0.9


def test_options_and_sharing(tmp_path: Path) -> None:
    models = [model(tmp_path / "a.onnx", 1), model(tmp_path / "b.onnx", 1)]
    path = init.write(
        models,
        tmp_path / "m.yaml",
        provider="QNNExecutionProvider",
        options={"soc_model": "60", "vtcm_mb": "8"},
        share=True,
    )
    (group,) = load.load(path).targets[0].groups
    (spec,) = group.execution_providers
    assert (spec.alias, spec.options) == ("qnn", {"soc_model": "60", "vtcm_mb": 8})
    assert group.sharing_groups == {"main": ("a", "b")}


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        ("QNNExecutionProvider", {"htp_arch": "73", "vtcm_mb": "8", "soc_model": "[60, sm8650]"}),
        ("QNNExecutionProvider", {"soc_model": "60", "enable_htp_fp16_precision": "1"}),
        ("QNNExecutionProvider", {"soc_model": "60", "enable_htp_fp16_precision": "true"}),
        ("ReferenceExecutionProvider", {"sdk_version": "2.1", "hardware_architecture": "7"}),
    ],
)
def test_options_are_as_editors_want_them(
    tmp_path: Path, provider: str, options: dict[str, str]
) -> None:
    """The schema for them takes no number for an option that is one of several texts."""
    path = init.write(
        [model(tmp_path / "a.onnx", 1)], tmp_path / "m.yaml", provider=provider, options=options
    )
    schema = json.loads(bundled_schema.text())
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(found))


@pytest.mark.parametrize(
    ("files", "keys"),
    [
        (["a.onnx", "b/a.onnx", "c/A.onnx"], ["a", "a_2", "A_3"]),
        (["a.onnx", "a.onnx"], ["a", "a_2"]),
        (["con.onnx", "my model.onnx", "-x.onnx", "模型.onnx"], ["_con", "my_model", "x", "model"]),
        (["...onnx", "a..onnx"], ["model", "a"]),
        (["x" * 150 + ".onnx"], ["x" * 90]),
    ],
)
def test_model_names_are_safe_and_told_apart(files: list[str], keys: list[str]) -> None:
    found = init.model_names([Path(file) for file in files])
    assert found == keys


@pytest.mark.parametrize("name", ["1", "1e3", "null", "true", "0x1F", ".5"])
def test_a_model_whose_name_is_a_number_to_yaml_is_quoted(tmp_path: Path, name: str) -> None:
    other = model(tmp_path / "b.onnx", 1)
    path = init.write([model(tmp_path / f"{name}.onnx", 1), other], tmp_path / "m.yaml", share=True)
    (group,) = load.load(path).targets[0].groups
    assert [each.path.stem for each in group.models] == [name, "b"]
    assert group.sharing_groups == {"main": tuple(each.name for each in group.models)}
    init.write([tmp_path / f"{name}.onnx"], tmp_path / "one.yaml")
    assert load.load(tmp_path / "one.yaml").name == group.models[0].name


@pytest.mark.usefixtures("no_sizes")
def test_names_in_the_model_are_written_so_that_they_are_read(tmp_path: Path) -> None:
    """Of inputs and of dimensions."""
    names = ["x", "input ids", "a: b", "#c", "on", "1", "null", "it's", 'a"b', "{", "ü", "a\tb"]
    names.append("- a")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, n]) for n in names]
    outputs = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [None, n]) for n in names]
    nodes = [helper.make_node("Relu", [name], [f"y{name}"]) for name in names]
    graph = helper.make_graph(nodes, "g", values, outputs)
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    text = init.text([tmp_path / "a.onnx"], tmp_path / "m.yaml", options={})
    lines = [line.replace("# ", "", 1) for line in text.splitlines() if ": {" in line]
    wanted = [line for line in lines if line.strip().startswith(("dimensions", "shapes"))]
    parsed = build.build("\n".join(wanted), file="m").root.plain()
    assert parsed == {
        "dimensions": dict.fromkeys(names, 1),
        "shapes": {name: [1, 1] for name in names},
    }


def test_weights_need_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1024], bytes(4096), raw=True)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1024])], [weight])  # fmt: skip
    onnx.save(
        helper.make_model(graph),
        path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    (tmp_path / "w.bin").unlink()
    assert "    # dimensions: {n: 1}\n" in init.text([path], tmp_path / "m.yaml", options={})


def test_it_replaces_nothing_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("mine", encoding="utf-8")
    one = model(tmp_path / "a.onnx", 1)
    with pytest.raises(UsageError, match="already exists"):
        init.write([one], path)
    assert path.read_text(encoding="utf-8") == "mine"
    init.write([one], path, force=True)
    assert api.validate(path).violations == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "m.yaml"]


def test_a_model_outside_is_refused_with_a_place_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = model(tmp_path / "models" / "a.onnx", 1)
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.raises(UsageError, match="outside") as caught:
        init.write([one], folder / "m.yaml")
    assert "remove --out" in caught.value.remedy
    monkeypatch.chdir(folder)
    written = init.write([one])
    assert written == one.parent / "epctx.yaml" and api.validate(written).violations == ()


def test_it_is_in_the_nearest_folder_that_holds_all_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = model(tmp_path / "x" / "a.onnx", 1), model(tmp_path / "y" / "z" / "b.onnx", 1)
    monkeypatch.chdir(tmp_path)
    assert init.write([one, two]) == Path("epctx.yaml")
    assert init.folder([Path("x/a.onnx")]) == Path()
    monkeypatch.chdir(tmp_path / "x")
    assert init.folder([one, two]) == tmp_path
    beside = init.write([Path("../y/z/b.onnx")])
    assert beside == tmp_path / "y" / "z" / "epctx.yaml" and api.validate(beside).violations == ()
    with pytest.raises(UsageError, match="no folder holds all the models"):
        init.folder([one, Path("/elsewhere/c.onnx")])


@pytest.mark.parametrize(
    ("provider", "options", "where", "what"),
    [
        ("Qnn", {}, "--provider", 'there is no provider "Qnn"'),
        ("MadeUpExecutionProvider", {}, "--provider", "has no option schema"),
        ("CPUExecutionProvider", {}, "--provider", "is the default EP"),
        ("QNNExecutionProvider", {"soc_modle": "60"}, "--option soc_modle", "unknown option"),
        ("QNNExecutionProvider", {"vtcm_mb": "lots"}, "--option vtcm_mb", "must be"),
        ("QNNExecutionProvider", {"a: b": "x\ny"}, "--option", "unknown option"),
    ],
)
def test_a_wrong_provider_or_option_is_told_by_its_argument(
    tmp_path: Path, provider: str, options: dict[str, str], where: str, what: str
) -> None:
    path = tmp_path / "m.yaml"
    with pytest.raises(ManifestError, match=what) as caught:
        init.write([model(tmp_path / "a.onnx", 1)], path, provider=provider, options=options)
    assert (caught.value.where or "").startswith(where)
    assert caught.value.remedy and not path.exists()


def test_sharing_needs_two_models_and_an_ep_that_can(tmp_path: Path) -> None:
    one, two = model(tmp_path / "a.onnx", 1), model(tmp_path / "b.onnx", 1)
    with pytest.raises(UsageError, match="two models"):
        init.write([one], tmp_path / "m.yaml", share=True)
    with pytest.raises(UsageError, match="cannot share") as caught:
        init.write(
            [one, two], tmp_path / "m.yaml", provider="TensorrtExecutionProvider", share=True
        )
    assert caught.value.where == "--share"


def test_what_is_no_model_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello", encoding="utf-8")
    for name in ("text.onnx", "none.onnx"):
        with pytest.raises(ModelError):
            init.write([tmp_path / name], tmp_path / "m.yaml")
    assert not (tmp_path / "m.yaml").exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    one = model(tmp_path / "new" / "models" / "a.onnx", 1)
    target = tmp_path / "new" / "models" / "m.yaml"
    init.write([one], target)
    (tmp_path / "new" / "m.yaml").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        init.write([one], tmp_path / "new" / "m.yaml", force=True)
    assert not list((tmp_path / "new").glob(".m.yaml*"))


@pytest.mark.parametrize("stem", ["m😀", "modèle 𝄞", 'a"b', "\U000e0001tag"])
def test_a_model_of_any_name_has_a_manifest_that_is_read(tmp_path: Path, stem: str) -> None:
    model(tmp_path / f"{stem}.onnx")
    path = init.write([tmp_path / f"{stem}.onnx"], tmp_path / "epctx.yaml")
    (source,) = load.load(path).targets[0].groups[0].models
    assert source.path.name == f"{stem}.onnx"


@pytest.mark.needs("Linux", "elsewhere names of files are text")
def test_a_model_whose_name_is_no_text_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "m\udcff.onnx"
    model(path)
    with pytest.raises(UsageError, match="is not UTF-8"):
        init.write([path], tmp_path / "epctx.yaml")
    assert not (tmp_path / "epctx.yaml").exists()


def test_editors_get_the_schema_and_the_line_that_names_it(tmp_path: Path) -> None:
    one = model(tmp_path / "a.onnx", 1)
    path = init.write([one], tmp_path / "m.yaml", schema=True)
    second = path.read_text(encoding="utf-8").splitlines()[1]
    assert second == "# yaml-language-server: $schema=epctx.manifest.schema.json"
    schema = json.loads((tmp_path / "epctx.manifest.schema.json").read_text(encoding="utf-8"))
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    document["model_groups"]["main"]["embed_mod"] = 1
    with pytest.raises(jsonschema.ValidationError, match="embed_mod"):
        jsonschema.Draft202012Validator(schema).validate(document)
    assert reader.is_manifest(path)
    other = init.write([one], tmp_path / "other.yaml", schema=True)
    assert "$schema=" in other.read_text(encoding="utf-8")


QNN = "QNNExecutionProvider"
OPTIONS = {"soc_model": "60"}


@pytest.fixture
def quantizable(tmp_path: Path) -> Path:
    onnx.save(mlp(width=8, layers=1), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def half(path: Path) -> Path:
    made = mlp(width=8, layers=1)
    for tensor in made.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(made, path)
    return path


def test_it_is_valid_and_says_where_samples_go(quantizable: Path) -> None:
    path = command.write([quantizable], quantizable.with_name("epctx.yaml"), quantize=True)
    (group,) = load.load(path).targets[0].groups
    assert group.quantize is not None and group.quantize.calibration.random
    text = path.read_text(encoding="utf-8")
    assert "savez('calib/0.npz', **{'x': ...})    # float32[1, 8]\n" in text
    assert "put `calibration: {files: [calib/*.npz]}` here" in text


def test_samples_that_are_there_are_taken(quantizable: Path) -> None:
    (quantizable.parent / "calib").mkdir()
    np.savez(quantizable.parent / "calib" / "0.npz", x=np.zeros((1, 8), np.float32))
    path = command.write([quantizable], quantizable.with_name("epctx.yaml"), quantize=True)
    (group,) = load.load(path).targets[0].groups
    assert group.quantize is not None
    assert [each.name for each in group.quantize.calibration.files] == ["0.npz"]


def test_for_qnn_a_comment_says_that_it_exists_and_is_valid(quantizable: Path) -> None:
    path = command.write(
        [quantizable], quantizable.with_name("a.yaml"), provider=QNN, options=OPTIONS
    )
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("# quantize", "quantize"), encoding="utf-8")
    (group,) = load.load(path).targets[0].groups
    assert group.quantize is not None
    assert group.preset == "qnn"


def test_what_cannot_be_quantized_is_refused(quantizable: Path) -> None:
    path = quantizable.with_name("epctx.yaml")
    with pytest.raises(UsageError, match="needs a float32 model, but this is float16"):
        command.write([half(quantizable.with_name("half.onnx"))], path, quantize=True)
    with pytest.raises(UsageError, match="this is a folder of onnxruntime-genai"):
        command.write([quantizable.parent], path, quantize=True)
    assert not path.exists()


def test_no_name_ends_a_comment(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x\n    x", TensorProto.FLOAT, ["n\n  y: 1", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", [x.name], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    written = [
        *command.quantize_lines([tmp_path / "m.onnx"], tmp_path / "m.yaml", QNN, requested=True)
    ]
    assert not [line for line in written if "\n" in line]


@pytest.mark.needs("POSIX", "Windows reads a backslash as a separator")
@pytest.mark.parametrize("name", ["a\\b.onnx", "~m.onnx"])
def test_a_name_that_no_manifest_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"has a backslash|starts with ~"):
        init.write([model(tmp_path / name, 1, 3)], tmp_path / "epctx.yaml")
    assert not (tmp_path / "epctx.yaml").exists()
