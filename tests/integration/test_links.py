"""Models and external data behind links, as in the cache of Hugging Face: epctx takes the layouts
that ONNX Runtime takes, and no other.

ONNX Runtime opens data beside the model's path. With links followed, it must be below the folder of
that path, or below the folder of the real model file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import onnx
import pytest
from msgspec import Struct

from tests.kit import real_models
from tests.kit.building import cpu
from tests.kit.command_line import inside
from tests.kit.devices import lacking

pytestmark = pytest.mark.needs("links")
MODEL, DATA = "the model", "its data"
REFERENCE = ("--provider", "ReferenceExecutionProvider")
QNN = "QNNExecutionProvider"
MANIFEST = """
schema_version: 1
name: m
models: {{m: {{path: {path}}}}}
execution_providers:
  ref: {{provider: ReferenceExecutionProvider}}
  qnn: {{provider: QNNExecutionProvider, options: {{soc_model: "60"}}}}
model_groups:
  ref: {{models: [m], execution_providers: [ref]}}
"""
ON_QNN = "  qnn: {models: [m], execution_providers: [qnn]}\n"


class Layout(Struct, frozen=True):
    """Files by path: MODEL, DATA, or where a link leads. `refusal` of ONNX Runtime and of epctx;
    None if both take it.
    """

    files: Mapping[str, str]
    refusal: tuple[str, str] | None = None
    path: str = "a/m.onnx"


MISSING: Final = ("escapes model directory", "error[E0402]")
"""ONNX Runtime of a missing file beside a linked model, as of one that leads out."""
LEADS_OUT: Final = ("escapes model directory", "error[E0408]")
PLAIN: Final = "plain files"
LAYOUTS: Final = {
    PLAIN: Layout({"a/m.onnx": MODEL, "a/m.data": DATA}),
    "the model is a link, its data is beside the link": Layout(
        {"real/m.onnx": MODEL, "a/m.onnx": "../real/m.onnx", "a/m.data": DATA}
    ),
    "the model is a link, its data is beside the real model": Layout(
        {"real/m.onnx": MODEL, "real/m.data": DATA, "a/m.onnx": "../real/m.onnx"}, MISSING
    ),
    "links into one folder, as in Hugging Face's cache": Layout(
        {
            "blobs/1f": MODEL,
            "blobs/2e": DATA,
            "snapshots/9d/onnx/m.onnx": "../../../blobs/1f",
            "snapshots/9d/onnx/m.data": "../../../blobs/2e",
        },
        path="snapshots/9d/onnx/m.onnx",
    ),
    "the data is a link out of the folder": Layout(
        {"a/m.onnx": MODEL, "other/m.data": DATA, "a/m.data": "../other/m.data"}, LEADS_OUT
    ),
    "the folder is a link": Layout({"real/m.onnx": MODEL, "real/m.data": DATA, "a": "real"}),
    "links to links": Layout(
        {
            "blobs/1f": MODEL,
            "hop/m": "../blobs/1f",
            "a/m.onnx": "../hop/m",
            "blobs/2e": DATA,
            "hop/d": "../blobs/2e",
            "a/m.data": "../hop/d",
        }
    ),
    # Beyond the seven: the edges of the rule.
    "the data is below the real model's folder": Layout(
        {
            "blobs/1f": MODEL,
            "a/m.onnx": "../blobs/1f",
            "blobs/deep/2e": DATA,
            "a/m.data": "../blobs/deep/2e",
        }
    ),
    "the data is where a link on the way is": Layout(
        {
            "blobs/1f": MODEL,
            "hop/m": "../blobs/1f",
            "a/m.onnx": "../hop/m",
            "hop/d": DATA,
            "a/m.data": "../hop/d",
        },
        LEADS_OUT,
    ),
    "the data is in a folder whose name begins as the real model's": Layout(
        {
            "blobs/1f": MODEL,
            "a/m.onnx": "../blobs/1f",
            "blobs2/2e": DATA,
            "a/m.data": "../blobs2/2e",
        },
        LEADS_OUT,
    ),
    "the model is a link to nothing": Layout(
        {"a/m.onnx": "m.onnx.gone", "a/m.data": DATA},
        ("doesn't exist", "is a broken link to m.onnx.gone"),
    ),
    "the data is a link to nothing": Layout(
        {"a/m.onnx": MODEL, "a/m.data": "gone"}, ("does not exist", "a link to gone, which does")
    ),
}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A model that runs in ONNX Runtime with changes, too: its branches are counted."""
    folder = tmp_path_factory.mktemp("model")
    onnx.save(
        real_models.branching(),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=1024,
    )
    return {
        MODEL: (folder / "m.onnx").read_bytes(),
        DATA: (folder / "m.data").read_bytes(),
    }


def laid_out(layout: Layout, folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Write a layout; return the model's path."""
    for name, content in layout.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content in contents:
            path.write_bytes(contents[content])
        else:
            path.symlink_to(content, target_is_directory="." not in path.name)
    return folder / layout.path


def built(manifest: Path, *, qnn: bool) -> dict[str, str]:
    """Validate and build with `--allow-outside`; return the checksums of each group."""
    groups = ["ref", "qnn"] if qnn else ["ref"]
    for command in (("validate",), ("build", "--out", manifest.parent / "dist", "--no-cache")):
        done = inside(*command, manifest.name, "--allow-outside", cwd=manifest.parent)
        assert done.returncode == 0, done.stderr
    published = manifest.parent / "dist" / "m" / "default"
    return {each: (published / each / "SHA256SUMS").read_text() for each in groups}


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory, contents: Mapping[str, bytes]
) -> dict[str, str]:
    model = laid_out(LAYOUTS[PLAIN], tmp_path_factory.mktemp("plain"), contents)
    return built(written(model.with_name("m.yaml"), model), qnn=lacking(QNN) is None)


def written(path: Path, model: Path) -> Path:
    """Write a manifest, with a group for QNN where it is installed."""
    relative = Path(os.path.relpath(model, path.parent)).as_posix()
    text = MANIFEST.format(path=relative) + ("" if lacking(QNN) else ON_QNN)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_epctx_takes_a_layout_if_onnx_runtime_takes_it(
    layout: Layout, contents: Mapping[str, bytes], plain: Mapping[str, str], tmp_path: Path
) -> None:
    model = laid_out(layout, tmp_path, contents)
    manifest = written(tmp_path / "m.yaml", model)
    if layout.refusal is None:
        cpu(model)
        assert built(manifest, qnn="qnn" in plain) == plain
        beside = written(model.with_name("m.yaml"), model)
        assert built(beside, qnn="qnn" in plain) == plain
        done = inside("validate", beside, cwd=tmp_path)
        outside = not model.resolve().is_relative_to(model.parent.resolve())
        assert (done.returncode == 3, "E0310" in done.stdout) == (outside, outside)
        return
    theirs, ours = layout.refusal
    with pytest.raises(Exception, match=theirs):  # onnxruntime's errors have no common class
        cpu(model)
    for command in (("validate",), ("build", "--out", tmp_path / "dist")):
        done = inside(*command, manifest, "--allow-outside", cwd=tmp_path)
        assert done.returncode == 4 and ours in done.stdout + done.stderr
    assert not (tmp_path / "dist" / "m").exists()


def test_a_cached_result_does_not_excuse_a_link(
    contents: Mapping[str, bytes], tmp_path: Path
) -> None:
    layout = LAYOUTS["links into one folder, as in Hugging Face's cache"]
    model = laid_out(layout, tmp_path, contents)
    manifest, cache = written(tmp_path / "m.yaml", model), str(tmp_path / "cache")
    build = ("build", manifest, "--only", "ref", "--out", tmp_path / "dist")
    assert inside(*build, cwd=tmp_path, EPCTX_CACHE_DIR=cache).returncode == 0
    link = model.with_name("m.data")
    link.resolve().rename(tmp_path / "m.data")
    link.unlink()
    link.symlink_to(tmp_path / "m.data")
    done = inside(*build, cwd=tmp_path, EPCTX_CACHE_DIR=cache)
    assert done.returncode == 4 and "E0408" in done.stderr


def test_init_finds_sizes_of_a_linked_model(contents: Mapping[str, bytes], tmp_path: Path) -> None:
    """ONNX Runtime loads it with these sizes in its inputs, because it has bodies."""
    proto = onnx.ModelProto.FromString(contents[MODEL])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    layout = LAYOUTS["links into one folder, as in Hugging Face's cache"]
    laid_out(layout, tmp_path, {**contents, MODEL: proto.SerializeToString()})
    assert inside("init", layout.path, *REFERENCE, cwd=tmp_path).returncode == 0
    assert "\n    dimensions: {n: 1}" in (tmp_path / "epctx.yaml").read_text(encoding="utf-8")


def test_init_says_that_a_linked_model_needs_allow_outside(
    contents: Mapping[str, bytes], plain: Mapping[str, str], tmp_path: Path
) -> None:
    layout = LAYOUTS["links into one folder, as in Hugging Face's cache"]
    model = laid_out(layout, tmp_path, contents)
    init = ("init", model, *REFERENCE)
    (tmp_path / "elsewhere").mkdir()
    done = inside(*init, cwd=tmp_path / "elsewhere")
    manifest = model.with_name("epctx.yaml")
    assert done.returncode == 0 and f"{manifest.as_posix()} --allow-outside" in done.stderr
    assert "--allow-outside" in manifest.read_text(encoding="utf-8")
    assert inside("build", manifest, "--allow-outside", cwd=tmp_path).returncode == 0
    sums = (tmp_path / "dist" / "m" / "default" / "main" / "SHA256SUMS").read_text()
    assert sums == plain["ref"]
    above = tmp_path / "epctx.yaml"
    done = inside(*init, cwd=tmp_path)
    assert done.returncode == 0 and "allow" not in done.stderr + above.read_text(encoding="utf-8")
    assert inside("build", above, "--out", tmp_path / "again", cwd=tmp_path).returncode == 0
