"""From YAML to the manifest's types."""

from pathlib import Path

import msgspec
import pytest

from epctx import api
from epctx.errors import InvalidManifest, ManifestError
from epctx.manifest import (
    ExternalInitializers,
    Manifest,
    ModelGroup,
    ModelSource,
    OptimizeSettings,
    PartitionSettings,
    ProviderSpec,
    Tolerance,
    VerifyInputs,
    VerifySettings,
)
from epctx.parsing import load as parsing

DESIGN = """\
# yaml-language-server: $schema=../schemas/manifest.schema.json
schema_version: 1
name: tiny-llm

models:
  prefill:
    path: models/tiny.onnx
    dimensions: {batch: 1, sequence: 64}
  decode:
    path: models/tiny.onnx
    dimensions: {batch: 1, sequence: 1}
    external_data_dir: models/weights
  vision:
    path: models/vision.onnx
    shapes: {pixel_values: [1, 3, 224, 224]}

execution_providers:
  htp:  {provider: QNNExecutionProvider, options: {soc_model: "60"}}
  vino: {provider: OpenVINOExecutionProvider}

defaults: {embed_mode: 0}

model_groups:
  llm:
    models: [prefill, decode]
    execution_providers: [htp]
    sharing_groups: {main: [prefill, decode]}
    embed_mode: 0
    optimize: {level: basic}
    partition: {exclude: {op_types: [TopK], nodes: ["/head/*"]}, min_nodes: 1, require_coverage: 0.9, max_partitions: 4}
    session_options: {}
    verify:
      inputs: {seed: 0, count: 2, ranges: {input_ids: [0, 31999]}}
      tolerance: {cosine_min: 0.999, max_abs: 0.01}
      numbers: full
      budget: 5m
    timeout: 30m
  eye:
    models: [vision]
    execution_providers: [vino]
    node_name_prefix: eye_
    external_initializers: {file: "{model}.data", size_threshold: 0}

targets:
  x-elite: {execution_providers: {htp: {options: {soc_model: "60"}}}}
  sm8650:  {execution_providers: {htp: {options: {soc_model: "57"}}}, exclude: [eye]}
"""  # noqa: E501
"""The manifest of design section 5."""

SMALL = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}}
execution_providers: {ref: {provider: ReferenceExecutionProvider}}
model_groups:
  g: {models: [a], execution_providers: [ref]}
"""


def load(folder: Path, text: str) -> Manifest:
    path = folder / "m.yaml"
    path.write_text(text, encoding="utf-8")
    return parsing.load(path)


def test_the_manifest_of_the_design(tmp_path: Path) -> None:
    loaded = load(tmp_path, DESIGN)
    prefill = ModelSource(
        name="prefill",
        path=tmp_path / "models/tiny.onnx",
        dimensions={"batch": 1, "sequence": 64},
    )
    decode = ModelSource(
        name="decode",
        path=tmp_path / "models/tiny.onnx",
        external_data_dir=tmp_path / "models/weights",
        dimensions={"batch": 1, "sequence": 1},
    )
    htp = ProviderSpec(alias="htp", provider="QNNExecutionProvider", options={"soc_model": "60"})
    llm = ModelGroup(
        name="llm",
        models=(prefill, decode),
        execution_providers=(htp,),
        sharing_groups={"main": ("prefill", "decode")},
        partition=PartitionSettings(
            exclude_op_types=("TopK",),
            exclude_nodes=("/head/*",),
            require_coverage=0.9,
            max_partitions=4,
        ),
        verify=VerifySettings(
            inputs=VerifyInputs(seed=0, count=2, ranges={"input_ids": (0.0, 31999.0)}),
            tolerance=Tolerance(cosine_min=0.999, max_abs=0.01),
            budget=300.0,
        ),
        timeout=1800.0,
    )
    eye = ModelGroup(
        name="eye",
        models=(
            ModelSource(
                name="vision",
                path=tmp_path / "models/vision.onnx",
                shapes={"pixel_values": (1, 3, 224, 224)},
            ),
        ),
        execution_providers=(ProviderSpec(alias="vino", provider="OpenVINOExecutionProvider"),),
        node_name_prefix="eye_",
        external_initializers=ExternalInitializers(file="{model}.data"),
    )
    assert (loaded.name, loaded.path) == ("tiny-llm", tmp_path / "m.yaml")
    elite, mobile = loaded.targets
    assert (elite.name, elite.groups) == ("x-elite", (llm, eye))
    on_mobile = msgspec.structs.replace(htp, options={"soc_model": "57"})
    assert mobile.groups == (msgspec.structs.replace(llm, execution_providers=(on_mobile,)),)


def test_a_small_manifest_has_the_defaults_of_the_types(tmp_path: Path) -> None:
    loaded = load(tmp_path, SMALL)
    (target,) = loaded.targets
    assert target.name == "default"
    assert target.groups == (
        ModelGroup(
            name="g",
            models=(ModelSource(name="a", path=tmp_path / "a.onnx"),),
            execution_providers=(ProviderSpec(alias="ref", provider="ReferenceExecutionProvider"),),
        ),
    )


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("optimize: {level: none}", {"optimize": OptimizeSettings(level="none")}),
        (
            "optimize: {level: [simplify, fold-constants]}",
            {"optimize": OptimizeSettings(level="explicit", passes=("simplify", "fold-constants"))},
        ),
        ("partition: {min_nodes: 3.0}", {"partition": PartitionSettings(min_nodes=3)}),
        ("partition: {max_partitions: null}", {"partition": PartitionSettings()}),
        (
            "session_options: {session.disable_prepacking: 0x1, session.disable_quant_qdq: null,"
            " session.graph_optimization_level: basic}",
            {
                "session_options": {
                    "session.disable_prepacking": "1",
                    "session.graph_optimization_level": "basic",
                }
            },
        ),
        ("external_initializers: null", {"external_initializers": None}),
        ("timeout: 1h30m", {"timeout": 5400.0}),
        ("verify: {budget: 90s}", {"verify": VerifySettings(budget=90.0)}),
        ("verify: {numbers: off}", {"verify": VerifySettings(numbers="off")}),
        (
            "verify: {tolerance: {max_abs: 1e-3, max_rel: null, cosine_min: 1}}",
            {"verify": VerifySettings(tolerance=Tolerance(max_abs=0.001, cosine_min=1.0))},
        ),
        ("embed_mode: 1", {"embed_mode": 1}),
    ],
)
def test_settings(tmp_path: Path, line: str, changes: dict[str, object]) -> None:
    text = SMALL.replace("execution_providers: [ref]}", f"execution_providers: [ref], {line}}}")
    before = load(tmp_path, SMALL).targets[0].groups[0]
    after = load(tmp_path, text).targets[0].groups[0]
    assert after == msgspec.structs.replace(before, **changes)


def test_options_arrive_as_the_ep_is_given_them(tmp_path: Path) -> None:
    text = SMALL.replace(
        "ReferenceExecutionProvider}",
        "ReferenceExecutionProvider, options: {ops: [MatMul, Add], source: npu}}",
    )
    (spec,) = load(tmp_path, text).targets[0].groups[0].execution_providers
    assert spec.options == {"ops": ("MatMul", "Add"), "source": "npu"}


def test_unknown_options_arrive_when_they_are_allowed(tmp_path: Path) -> None:
    text = SMALL.replace(
        "{provider: ReferenceExecutionProvider}",
        "{provider: MyExecutionProvider, allow_unknown_options: true,"
        " options: {a: 1, b: true, c: [x], d: 0.5, e: text}}",
    )
    (spec,) = load(tmp_path, text).targets[0].groups[0].execution_providers
    assert spec.allow_unknown_options
    assert spec.options == {"a": 1, "b": True, "c": ("x",), "d": 0.5, "e": "text"}


def test_so_is_the_library_of_a_plugin_without_a_schema(tmp_path: Path) -> None:
    text = SMALL.replace(
        "{provider: ReferenceExecutionProvider}",
        "{provider: AcmeExecutionProvider, allow_unknown_options: true,"
        " options: {plugin.library: sdk/libacme.so, backend: sdk/x.so}}",
    )
    (spec,) = load(tmp_path, text).targets[0].groups[0].execution_providers
    assert spec.options["plugin.library"] == (tmp_path / "sdk" / "libacme.so").as_posix()
    assert spec.path_options == ("plugin.library",)


def test_path_options_are_absolute_and_named(tmp_path: Path) -> None:
    text = SMALL.replace(
        "{provider: ReferenceExecutionProvider}",
        "{provider: QNNExecutionProvider, options: {op_affinity: data/ops.json}}",
    )
    (spec,) = load(tmp_path, text).targets[0].groups[0].execution_providers
    assert spec.path_options == ("op_affinity",)
    assert spec.options == {"op_affinity": (tmp_path / "data/ops.json").as_posix()}


def test_input_files_are_expanded_once_each_in_order(tmp_path: Path) -> None:
    for name in ("b.npz", "a.npz"):
        (tmp_path / name).write_bytes(b"")
    line = "verify: {inputs: {files: [b.npz, '*.npz']}}"
    text = SMALL.replace("execution_providers: [ref]}", f"execution_providers: [ref], {line}}}")
    inputs = load(tmp_path, text).targets[0].groups[0].verify.inputs
    assert inputs.files == (tmp_path / "b.npz", tmp_path / "a.npz")


def test_a_manifest_named_relatively_has_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loaded = parsing.load(Path("m.yaml"))
    assert loaded.path == tmp_path / "m.yaml"
    assert loaded.targets[0].groups[0].models[0].path == tmp_path / "a.onnx"


def test_outside_is_allowed_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    text = SMALL.replace("a.onnx", "../a.onnx")
    with pytest.raises(InvalidManifest, match="leads out"):
        load(folder, text)
    loaded = parsing.load(folder / "m.yaml", allow_outside=True)
    assert loaded.targets[0].groups[0].models[0].path.resolve() == tmp_path / "a.onnx"


def test_aliases_and_merges(tmp_path: Path) -> None:
    text = SMALL.replace(
        "models: {a: {path: a.onnx}}",
        "models:\n  a: &a {path: a.onnx, dimensions: {batch: 1, sequence: 64}}\n"
        "  b: {<<: *a, dimensions: {batch: 1, sequence: 1}}",
    ).replace("models: [a]", "models: [a, b]")
    a, b = load(tmp_path, text).targets[0].groups[0].models
    assert (a.dimensions["sequence"], b.dimensions["sequence"]) == (64, 1)
    assert a.path == b.path


def test_validate_and_load_agree(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(SMALL.replace("[ref]", "[rf]"), encoding="utf-8")
    with pytest.raises(InvalidManifest) as caught:
        parsing.load(path)
    assert api.validate(path, models=False).violations == caught.value.violations
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(InvalidManifest) as caught:
        parsing.load(path)
    assert api.validate(path, models=False).violations == caught.value.violations
    path.write_text(SMALL, encoding="utf-8")
    assert api.validate(path, models=False).violations == ()


def test_a_missing_manifest_is_a_manifest_error(tmp_path: Path) -> None:
    for read in (parsing.load, api.validate):
        with pytest.raises(ManifestError, match="does not exist"):
            read(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90.0), ("5m", 300.0), ("1h", 3600.0), ("1h30m", 5400.0), ("1h0m5s", 3605.0)],
)
def test_durations(text: str, expected: float) -> None:
    assert parsing.seconds(text) == expected
