"""Models with operators of their own: the library of their kernels, and QNN's op packages.

onnxruntime-extensions is the library: `Inverse` of `ai.onnx.contrib`, which inverts a matrix.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml
from onnx import numpy_helper

from epctx import api
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError, InvalidManifest, ManifestError, ModelError, UsageError
from epctx.providers import registry
from epctx.providers.onnxruntime.qnn.options import QnnOptions
from tests.kit import onnx_text

pytestmark = pytest.mark.needs("module onnxruntime_extensions")
QNN, REFERENCE = "QNNExecutionProvider", "ReferenceExecutionProvider"
qnn = pytest.mark.needs("module onnxruntime_qnn")
CUSTOM = """
inverting (float[4,4] x) => (float[4,4] y)
<float[4,4] b>
{
    [first] a = MatMul(x, w)
    [inverse] b = ai.onnx.contrib.Inverse(a)
    [tanh] t = Tanh(b)
    [last] y = MatMul(t, w)
}
"""


def library() -> Path:
    return Path(importlib.import_module("onnxruntime_extensions").get_library_path())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a model and its library."""
    model = onnx_text.proto(CUSTOM, opsets='"" : 17, "ai.onnx.contrib" : 1', ir_version=9)
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "ops").mkdir()
    shutil.copy(library(), tmp_path / "ops" / "libops.so")
    return tmp_path


def build(
    folder: Path, provider: str = REFERENCE, *, ops: str | None = "ops/libops.so", **more: Any
) -> BuildReport:
    options: dict[str, Any] = more.pop("options", {})
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx"} | ({} if ops is None else {"custom_ops": ops})},
        "execution_providers": {"ep": {"provider": provider, "options": options}},
        "model_groups": {"g": {"models": ["m"], "execution_providers": ["ep"], **more}},
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return api.build(folder / "m.yaml", out=folder / "dist")


@pytest.mark.parametrize(
    ("provider", "options", "sessions"),
    [
        (REFERENCE, {}, "files"),
        pytest.param(QNN, {"soc_model": "60", "partition_binaries": "each"}, "files", marks=qnn),
        pytest.param(QNN, {"soc_model": "60"}, "generating", marks=qnn),
    ],
)
def test_a_build_is_compared_with_the_source(
    project: Path, provider: str, options: dict[str, Any], sessions: str
) -> None:
    group = build(project, provider, options=options).groups[0]
    (model,) = group.models
    assert [each.node for each in model.declined] == ["inverse"]
    assert len(model.partitions) == 2
    assert group.verify is not None
    assert sessions in {each.sessions for each in group.verify.numbers}
    assert all(each.passed for each in group.verify.numbers)
    lock = yaml.safe_load((project / "m.lock.yaml").read_text(encoding="utf-8"))
    data = lock["groups"]["default/g"]["models"]["m"]["data"]
    assert data == {"./custom_ops": "ops/libops.so"}
    files = [path for path in (project / "dist" / "m").rglob("*") if path.is_file()]
    assert not any(b"libops" in path.read_bytes() for path in files)


@qnn
def test_a_session_needs_the_library(project: Path) -> None:
    """A published model runs in ONNX Runtime itself, with the library, as its source does."""
    build(project)
    published = project / "dist" / "m" / "default" / "g" / "m_ctx.onnx"
    import epctx

    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library()))
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)}
    wanted = ort.InferenceSession(project / "m.onnx", options).run(None, feeds)
    session = epctx.runtime.InferenceSession(published, options)
    np.testing.assert_allclose(session.run(None, feeds)[0], wanted[0], rtol=1e-4)
    with pytest.raises(EpctxError, match="Inverse"):
        epctx.runtime.InferenceSession(published)


def test_the_content_of_the_library_is_in_the_keys_and_its_path_is_not(project: Path) -> None:
    def ran(**more: Any) -> set[str]:
        return {each.action for each in build(project, **more).groups[0].actions if each.ran}

    assert {"optimize", "compile"} <= ran()
    shutil.move(project / "ops" / "libops.so", project / "other.so")
    assert not ran(ops="other.so")
    with (project / "other.so").open("ab") as stream:
        stream.write(b"changed")
    assert {"optimize", "compile", "verify"} <= ran(ops="other.so")


def test_a_model_without_its_library_says_what_to_do(project: Path) -> None:
    with pytest.raises(ModelError, match="no kernel for op Inverse") as error:
        build(project, ops=None)
    assert "custom_ops" in error.value.remedy


@pytest.mark.parametrize(
    ("content", "what"),
    [(None, "cannot be opened: No such file"), (b"text", "is not a library of custom operat")],
)
def test_a_bad_library_is_named(project: Path, content: bytes | None, what: str) -> None:
    place = project / "ops" / "libops.so"
    place.unlink()
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(ModelError, match=what) as error:
        build(project)
    assert "libops.so" in str(error.value)
    assert content is None or "custom_ops" in error.value.remedy
    assert not (project / "dist" / "m").exists()


def test_a_model_with_custom_ops_is_not_quantized(project: Path) -> None:
    with pytest.raises(InvalidManifest, match="quantization does not support `custom_ops`"):
        build(project, quantize={"calibration": {"random": True}})
    with pytest.raises(InvalidManifest, match=r"models\.m\.custom_ops: leads out of"):
        build(project, ops="../libops.so")


def test_a_build_elsewhere_takes_the_library_along(project: Path) -> None:
    build(project)
    assert api.reproduce(project / "m.yaml", vary=["path"]).reproducible
    inside = project / "dist" / "m" / "default" / "g"
    shutil.copy(library(), inside / "libops.so")
    with pytest.raises(UsageError, match="is an input of the build, but lies in a folder"):
        build(project, ops="dist/m/default/g/libops.so")


def test_without_its_manifest_a_model_is_not_checkable(project: Path) -> None:
    build(project)
    report = api.verify(project / "dist")
    assert report.passed
    (finding,) = (each for each in report.findings("not checkable") if "Inverse" in each.message)
    assert "custom_ops" in finding.remedy
    path = project / "dist" / "m" / "default" / "g" / "m_ctx.onnx"
    model = onnx.load(path)
    next(node for node in model.graph.node if node.domain == "ai.onnx.contrib").domain = ""
    alone = project / "alone" / "m_ctx.onnx"
    alone.parent.mkdir()
    shutil.copy(path.with_name("m_reference.bin"), alone.parent)
    onnx.save(model, alone)
    failed = [each.message for each in api.verify(alone.parent).findings("fail")]
    assert any("No Op registered for Inverse" in each for each in failed), "ONNX lacks it"
    assert api.verify(project / "dist", manifest=project / "m.yaml").passed


@qnn
def test_files_of_op_packages(project: Path) -> None:
    """No package can be built here; QNN says so of a file that is none."""
    packages = project / "packages"
    packages.mkdir()
    options = {
        "op_packages": "Inverse:libMyOps.so:MyOpsInterfaceProvider:CPU",
        "op_packages_dir": "packages",
    }
    with pytest.raises(ManifestError, match=r"packages/libMyOps\.so: there is no such file"):
        build(project, QNN, options=options)
    (packages / "libMyOps.so").write_bytes(b"first")
    given = {**options, "op_packages_dir": str(packages)}
    path = packages / "libMyOps.so"
    assert QnnOptions.parse(given).given == {
        "op_packages": f"Inverse:{path}:MyOpsInterfaceProvider:CPU"
    }
    model = onnx_text.model(CUSTOM, opsets='"" : 17, "ai.onnx.contrib" : 1', infer=False)
    for bound, offered in ((given, True), ({}, False)):
        capability = registry.bind(QNN, bound).get_capability(model)
        assert ("inverse" in {node.name for node in capability.nodes}) is offered
    with pytest.raises(EpctxError, match="OP_PACKAGE_NOT_FOUND"):
        build(project, QNN, options=options)
    with pytest.raises(InvalidManifest, match="must be op packages"):
        build(project, QNN, options={**options, "op_packages": "Inverse:../x.so:Provider"})


@qnn
def test_the_content_of_op_packages_is_in_the_key(project: Path) -> None:
    from epctx.cache.digests import FreshDigests
    from epctx.keys import Toolchain
    from epctx.manifest import ProviderSpec

    def record(folder: str, content: bytes) -> Any:
        place = project / folder
        place.mkdir(exist_ok=True)
        (place / "libMyOps.so").write_bytes(content)
        options = {"op_packages": "Op:libMyOps.so:Provider", "op_packages_dir": str(place)}
        spec = ProviderSpec(
            alias="ep", provider=QNN, options=options, path_options=("op_packages_dir",)
        )
        return Toolchain(FreshDigests()).provider(spec)

    first = record("one", b"first")
    assert record("two", b"first") == first, "the place does not count"
    assert record("one", b"second") != first
