"""Must show: one package for two Snapdragons and Intel, read by ONNX Runtime's own reader."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from epctx import api
from epctx.commands.package.writing import PackageReport
from epctx.graph.inputs import specs
from epctx.inference.feeds import generate
from epctx.providers import registry
from scripts import quickstart_models
from tests.kit import package_reader, projects
from tests.kit.building import cpu, normal
from tests.kit.package_reader import Request

VINO = "OpenVINOExecutionProvider"
pytestmark = pytest.mark.needs_device("QNNExecutionProvider", VINO)
MANIFEST = Path(__file__).parents[2] / "manifests" / "package.yaml"
MODELS = ("prefill", "decode")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PackageReport]:
    """The manifest's folder with its package in `dist`."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copy(MANIFEST, folder)
    quickstart_models.write(folder / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        return folder, api.package(folder / "package.yaml", out=folder / "dist")


@pytest.fixture
def copied(made: tuple[Path, PackageReport], tmp_path: Path) -> Path:
    """A copy of the package, elsewhere."""
    return shutil.copytree(made[0] / "dist" / "package.ortpackage", tmp_path / "else where.pkg")


def test_it_has_a_component_for_each_model_and_a_variant_for_each_target(
    made: tuple[Path, PackageReport],
) -> None:
    package = json.loads((made[0] / "dist/package.ortpackage/manifest.json").read_bytes())
    assert list(package["components"]) == list(MODELS)
    for model in MODELS:
        variants = package["components"][model]["variants"]
        assert list(variants) == ["x-elite", "sm8650", "intel"]
        assert [v["device"] for v in variants.values()] == ["npu", "npu", "cpu"]
        socs = [v["compatibility_string"].split(":")[5] for v in list(variants.values())[:2]]
        assert socs == ["60", "57"]
        for target in ("x-elite", "sm8650"):
            assert variants[target]["variant_directory"] == f"{target}/llm"
            assert variants[target]["executor_info"]["ort"] == {
                "model_file": f"{model}_ctx.onnx",
                "session_options": {"ep.share_ep_contexts": "1"},
                "provider_options": {"htp_performance_mode": "burst"},
            }
        assert variants["intel"]["executor_info"]["ort"] == {"model_file": f"{model}_ctx.onnx"}


@pytest.mark.parametrize("model", MODELS)
def test_the_reader_picks_the_openvino_variant_and_its_numbers_are_right(
    model: str, copied: Path, made: tuple[Path, PackageReport], tmp_path: Path
) -> None:
    source = ort.InferenceSession(str(made[0] / "models" / "tiny_llm_npu.onnx"))
    inputs = specs(onnx.load(copied / "intel" / "llm" / f"{model}_ctx.onnx"))
    ranges = {
        "input_ids": (0.0, 2047.0),
        "past_mask": (0.0, 1.0),
        "attention_bias": (-1.0, 0.0),
    }
    given = generate(inputs, seed=7, index=0, ranges=ranges)
    expected = dict(
        zip([o.name for o in source.get_outputs()], source.run(None, given), strict=True)
    )
    answer, outputs = package_reader.run(copied, VINO, model, given, scratch=tmp_path / "run")
    assert not answer.error
    assert answer.schema == 1
    assert answer.variants[model] == {
        "x-elite": "QNNExecutionProvider",
        "sm8650": "QNNExecutionProvider",
        "intel": VINO,
    }
    assert answer.selected == "intel"
    assert Path(answer.folder) == copied / "intel" / "llm"
    assert outputs.keys() == expected.keys()
    own = registry.bind(VINO, {}).tolerance("float32", "float32")
    exact = None if own is None else own.max_rel
    limit = 1e-4 if exact == 1e-3 else 0.05  # in bfloat16, where the CPU has units for it
    for name, right in expected.items():
        assert np.abs(outputs[name] - right).max() <= limit * np.abs(right).max(), name


def test_a_wrong_compatibility_string_is_rejected_by_the_reader_and_by_verify(
    copied: Path, tmp_path: Path
) -> None:
    manifest = copied / "manifest.json"
    package = json.loads(manifest.read_bytes())
    for target in ("x-elite", "sm8650"):  # to look at them takes time, and is not what matters
        shutil.rmtree(copied / target)
        for component in package["components"].values():
            del component["variants"][target]
    variant = package["components"]["decode"]["variants"]["intel"]
    info = json.loads(variant["compatibility_string"])
    info["ov_compat_string"] = "meta=1.0;ov=2020.1.0;isa=another"
    variant["compatibility_string"] = json.dumps(info)
    manifest.write_text(json.dumps(package), encoding="utf-8")
    (copied / "SHA256SUMS").unlink()  # whoever changes one, changes the other
    request = Request(package=str(copied), provider=VINO, component="decode")
    assert "No suitable model variant" in package_reader.ask(request, scratch=tmp_path).error
    report = api.verify(copied)
    (fault,) = report.findings("fail")
    assert (fault.policy, fault.check, fault.subject) == (
        "compatibility",
        "variant",
        "decode_ctx.onnx",
    )
    assert "decode/intel" in fault.message and "ov=2020.1.0" in fault.message
    other = Request(package=str(copied), provider=VINO, component="prefill")
    assert package_reader.ask(other, scratch=tmp_path).selected == "intel"


def test_it_verifies_with_numbers_against_the_sources(
    made: tuple[Path, PackageReport], copied: Path
) -> None:
    report = api.verify(copied, manifest=made[0] / "package.yaml")
    assert report.passed
    intel = next(f for f in report.folders if f.folder.endswith("intel/llm"))
    assert {n.model for n in intel.numbers} == {f"{model}_ctx.onnx" for model in MODELS}


def test_made_again_elsewhere_it_is_the_same_to_the_byte(
    made: tuple[Path, PackageReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a build makes anew is compared by other tests: this is the package's own share."""
    folder, first = made
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
    again = api.package(folder / "package.yaml", out=folder / "dist")
    assert (first.state, again.state) == ("written", "up to date")
    shutil.copytree(folder / "models", tmp_path / "models")
    shutil.copy(folder / "package.yaml", tmp_path / "other.yaml")
    api.package(tmp_path / "other.yaml", out=tmp_path / "out")
    assert files(tmp_path / "out" / "package.ortpackage") == files(
        folder / "dist" / "package.ortpackage"
    )


def test_a_context_binary_is_found_where_the_weights_are_elsewhere(tmp_path: Path) -> None:
    """Told where external data is, OpenVINO and QNN look there for their context binaries, too."""
    project = projects.make(tmp_path, {"g": ["a"]}, external_initializers={"file": "{model}.data"})
    project.document["execution_providers"] = {"ref": {"provider": VINO}}
    project.section("defaults")["partition"] = {"exclude": {"op_types": ["MatMul"]}}
    project.document["targets"] = {
        "vino": {},
        "cpu": {"model_groups": {"g": {"execution_providers": []}}},
    }
    project.write()
    api.package(project.manifest, out=tmp_path / "dist")
    folder = tmp_path / "dist" / "m.ortpackage"
    assert len(list(folder.rglob("a.data"))) == 1
    x = normal((1, 32))
    (right,) = cpu(tmp_path / "a.onnx").run(None, {"x": x})
    answer, outputs = package_reader.run(folder, VINO, "a", {"x": x}, scratch=tmp_path / "r")
    assert (answer.error, answer.selected) == ("", "vino")
    assert np.abs(outputs["y"] - right).max() <= 1e-5 * np.abs(right).max()
    assert api.verify(folder, manifest=project.manifest).passed

    manifest = folder / "manifest.json"
    package = json.loads(manifest.read_bytes())
    info = package["components"]["a"]["variants"]["vino"]["executor_info"]["ort"]
    assert info["session_options"].pop("ep.context_file_path") == "a_ctx.onnx"
    manifest.write_text(json.dumps(package), encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    answer, _ = package_reader.run(folder, VINO, "a", {"x": x}, scratch=tmp_path / "r")
    assert "Can not open file" in answer.error
    (fault,) = api.verify(folder).findings("fail")
    assert "no `ep.context_file_path`" in fault.message


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
