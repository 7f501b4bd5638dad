"""What QNN and OpenVINO let pass without a word, through `epctx build` and `epctx verify`.

Each line of the tables was measured to end in a wrong, empty or dangling output with status "ok",
or in a dead process (real-eps.md sections 3, 5, 6, 9, 13 and 15). Here each ends in an error that
says what to do, with its exit code, and no file of the failed group is in `dist/<name>/`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest
import yaml
from _pytest.mark import ParameterSet
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from epctx.cli.app import app
from epctx.providers.onnxruntime import plugins
from tests.kit import real_models as models
from tests.kit.command_line import epctx
from tests.kit.devices import lacking

pytestmark = [
    pytest.mark.needs("module onnxruntime_qnn"),
    pytest.mark.needs("module onnxruntime_ep_openvino"),
]
QNN, VINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
on_openvino = pytest.mark.needs_device(VINO)
SMALL = models.mlp(layers=2, width=32)


def empty_graph() -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([], "g", [value], [value])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def of_strings() -> onnx.ModelProto:
    """Nothing in it is for an EP."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="a")
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 2])
    inputs = [value("x", TensorProto.STRING, [2])]
    outputs = [value("y", TensorProto.STRING, [1, 2])]
    graph = helper.make_graph([node], "g", inputs, outputs, [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def det() -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    node = helper.make_node("Det", ["x"], ["y"], name="det")
    inputs = [value("x", TensorProto.FLOAT, [4, 3, 3])]
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, [4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


SOURCES = {
    "det": det(),
    "strings": of_strings(),
    "small": SMALL,
    "other": models.mlp(layers=2, width=32, seed=1),
    "tanh": models.mlp(layers=3, width=32, middle="Tanh"),
    "wide": models.mlp(batch=8, layers=2, width=32),
    "dynamic": models.mlp(batch="n", width=16),
    "sinh": models.mlp(layers=3, width=32, middle="Sinh"),
    "unsupported": models.unsupported(),
    "empty_graph": empty_graph(),
    "empty_batch": models.mlp(batch=0, layers=2, width=16),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, model in SOURCES.items():
        onnx.save(model, folder / f"{name}.onnx")
    return folder


@dataclass(frozen=True, kw_only=True)
class Fails:
    """A group that a build must refuse: its settings, and the error."""

    code: int
    says: str
    provider: str = QNN
    options: Mapping[str, object] = field(default_factory=dict)
    models: tuple[str, ...] = ("small",)
    group: Mapping[str, object] = field(default_factory=dict)

    def settings(self, name: str) -> dict[str, object]:
        return {"models": list(self.models), "execution_providers": [name], **self.group}

    def execution_provider(self) -> dict[str, object]:
        chip = {"soc_model": "60"} if self.provider == QNN else {}
        return {"provider": self.provider, "options": {**chip, **self.options}}


SHARED = {"sharing_groups": {"main": ["small", "tanh"]}}
REFUSED = {
    # section 9: the output is the source model again, without an EPContext node
    "backend_path that is not there": Fails(
        code=3, says="there is no such file", options={"backend_path": "nowhere/libQnnHtp.so"}
    ),
    "backend_path of another library": Fails(
        code=3, says="which is not an HTP backend", options={"backend_path": "models/small.onnx"}
    ),
    "backend_type of the CPU": Fails(
        code=3, says='backend_type: is "cpu", must be htp', options={"backend_type": "cpu"}
    ),
    "backend_type that nobody knows": Fails(
        code=3, says='did you mean "htp"?', options={"backend_type": "hpt"}
    ),
    "a chip that is none": Fails(
        code=3, says='soc_model: is "99999", must be one SoC number', options={"soc_model": "99999"}
    ),
    "a chip unknown to QAIRT": Fails(
        code=3, says="soc_model is 122, a chip that QAIRT", options={"soc_model": "122"}
    ),
    "a device that is not there": Fails(
        code=3, says="device_id: is 7, must be 0", options={"device_id": 7}
    ),
    "resources shared on x86": Fails(
        code=3,
        says="while compiling on x86, nothing is compiled",
        options={"htp_share_resource_optimization": "1"},
    ),
    # section 9: taken for chip 0, or for nothing
    "a chip that is no number": Fails(
        code=3, says='soc_model: is "abc", must be one SoC number', options={"soc_model": "abc"}
    ),
    "a chip of a negative number": Fails(
        code=3, says='soc_model: is "-1", must be one SoC number', options={"soc_model": "-1"}
    ),
    "a chip that is empty": Fails(code=3, says="soc_model: is empty", options={"soc_model": ""}),
    "a chip called none": Fails(
        code=3, says='soc_model: is "none", must be one SoC number', options={"soc_model": "none"}
    ),
    "several chips": Fails(
        code=3, says='soc_model: is "60,73", must be one SoC number', options={"soc_model": "60,73"}
    ),
    "an unknown option of QNN": Fails(
        code=3,
        says='options.vtcm: unknown option\n  -> did you mean "vtcm_mb"?',
        options={"vtcm": "8"},
    ),
    "an unknown option of OpenVINO": Fails(
        code=3,
        says="num_of_threads: is refused: the plugin ignores it",
        provider=VINO,
        options={"num_of_threads": 4},
    ),
    "VTCM that is no number": Fails(
        code=3, says='vtcm_mb: is "abc", must be a whole number', options={"vtcm_mb": "abc"}
    ),
    "an optimization mode that is none": Fails(
        code=3,
        says="must be one of 0, 1, 2, 3",
        options={"htp_graph_finalization_optimization_mode": "9"},
    ),
    "an architecture that is none": Fails(
        code=3, says='htp_arch: is "99"', options={"htp_arch": "99"}
    ),
    "an architecture beside a chip": Fails(
        code=3, says="soc_model and htp_arch are both given", options={"htp_arch": "68"}
    ),
    "OpenVINO's properties of another device": Fails(
        code=3,
        says="OpenVINO ignores the properties of other devices",
        provider=VINO,
        options={"load_config": '{"GPU": {"NUM_STREAMS": "1"}}'},
    ),
    # sections 6 and 13: sharing
    "share with embed 1": Fails(
        code=3,
        says="embed_mode: must be 0 where models share a context",
        models=("small", "tanh"),
        group={**SHARED, "embed_mode": 1},
    ),
    "share with embed 1, OpenVINO": Fails(
        code=3,
        says="embed_mode: must be 0 where models share a context",
        provider=VINO,
        models=("small", "tanh"),
        group={**SHARED, "embed_mode": 1},
    ),
    "sharing set beside the sharing group": Fails(
        code=3,
        says='"ep.share_ep_contexts"]: is refused',
        group={"session_options": {"ep.share_ep_contexts": "1"}},
    ),
    "stop set beside the sharing group": Fails(
        code=3,
        says='"ep.stop_share_ep_contexts"]: is refused',
        group={"session_options": {"ep.stop_share_ep_contexts": "1"}},
    ),
    "the context set beside the manifest": Fails(
        code=3,
        says='"ep.context_file_path"]: is refused',
        group={"session_options": {"ep.context_file_path": "x.onnx"}},
    ),
    "a fallback to the CPU": Fails(
        code=3,
        says="use partition.require_coverage: 1.0",
        group={"session_options": {"session.disable_cpu_ep_fallback": "0"}},
    ),
    "a model twice in a sharing group": Fails(
        code=3,
        says="small is listed twice",
        models=("small",),
        group={"sharing_groups": {"m": ["small", "small"]}},
    ),
    # sections 3 and 15: external initializers
    "one file of initializers for two models": Fails(
        code=3,
        says="is one file for the 2 models of group g",
        models=("small", "tanh"),
        group={"external_initializers": {"file": "weights.bin"}},
    ),
    "initializers over the context binary": Fails(
        code=3,
        says="is written to small_qnn.bin, as the context of small",
        group={"external_initializers": {"file": "small_qnn.bin"}},
    ),
    "initializers over the model": Fails(
        code=3,
        says="is written to small_ctx.onnx, as model small",
        group={"external_initializers": {"file": "small_ctx.onnx"}},
    ),
    "initializers in another folder": Fails(
        code=3,
        says="must be a bare file name",
        group={"external_initializers": {"file": "../weights.bin"}},
    ),
    "initializers at an absolute path": Fails(
        code=3,
        says="must be a bare file name",
        group={"external_initializers": {"file": "/tmp/weights.bin"}},
    ),
}


def manifest_of(folder: Path, sources: Path, groups: Mapping[str, Fails]) -> Path:
    shutil.copytree(sources, folder / "models", dirs_exist_ok=True)
    used = {name for group in groups.values() for name in group.models}
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {name: {"path": f"models/{name}.onnx"} for name in sorted(used)},
        "execution_providers": {n: g.execution_provider() for n, g in groups.items()},
        "model_groups": {n: g.settings(n) for n, g in groups.items()},
    }
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def build(manifest: Path, *options: str) -> Result:
    out = manifest.parent / "dist"
    return CliRunner().invoke(app, ["build", str(manifest), "--out", str(out), *options])


def files_in(folder: Path) -> list[str]:
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(found)


@pytest.mark.parametrize("failure", REFUSED)
def test_a_manifest_is_refused(failure: str, tmp_path: Path, sources: Path) -> None:
    expected = REFUSED[failure]
    result = build(manifest_of(tmp_path, sources, {"g": expected}))
    assert (result.exit_code, expected.says in result.stderr) == (expected.code, True), (
        result.stderr
    )
    assert not (tmp_path / "dist" / "m").exists()


FAILED = {
    "good": Fails(code=0, says=""),
    "good_vino": Fails(code=0, says="", provider=VINO),
    "good_parts": Fails(code=0, says="", models=("sinh",)),
    "good_prefix": Fails(code=0, says="", group={"node_name_prefix": "eye_"}),
    "good_prefix_vino": Fails(code=0, says="", provider=VINO, group={"node_name_prefix": "eye_"}),
    "good_other": Fails(code=0, says="", models=("other",)),
    "good_wide": Fails(code=0, says="", models=("wide",)),
    "good_shared": Fails(code=0, says="", models=("small", "tanh"), group=SHARED),
    "nothing_supported_vino": Fails(
        code=6,
        says="OpenVINOExecutionProvider compiled nothing: Det: OpenVINO",
        models=("det",),
        provider=VINO,
    ),
    "strings": Fails(
        code=6,
        says='"x" is a tensor of strings, which no execution provider of onnxruntime takes',
        models=("strings",),
        provider=VINO,
    ),
    "embedded_parts_vino": Fails(
        code=6,
        says="OpenVINOExecutionProvider loads no model with several embedded contexts",
        models=("tanh",),
        provider=VINO,
        group={"embed_mode": 1, "partition": {"exclude": {"nodes": ["act1"]}}},
    ),
    "unknown_property": Fails(
        code=6,
        says="NO_SUCH_PROPERTY",
        provider=VINO,
        options={"load_config": '{"CPU": {"NO_SUCH_PROPERTY": "1"}}'},
    ),
    "dynamic_shapes": Fails(
        code=4,
        says='fix them in the manifest, under the model: `dimensions: {"n": 1}`',
        models=("dynamic",),
    ),
    "nothing_supported": Fails(
        code=6, says="Operators of type `Det` are not supported by QNN EP", models=("unsupported",)
    ),
    "empty_graph": Fails(code=4, says="has no node to compile", models=("empty_graph",)),
    "empty_graph_vino": Fails(
        code=4, says="has no node to compile", models=("empty_graph",), provider=VINO
    ),
    "empty_batch": Fails(
        code=6,
        says="QNNExecutionProvider crashed while compiling model empty_batch, ended by SIGFPE, "
        "an integer division by zero: does a tensor have a dimension of 0?",
        models=("small", "empty_batch", "tanh"),
        group={"sharing_groups": {"main": ["small", "empty_batch", "tanh"]}},
    ),
    "float_on_integers": Fails(
        code=6, says="compiles quantized models only", options={"soc_model": "sm8635"}
    ),
    "bad_property": Fails(
        code=6,
        says="INFERENCE_NUM_THREADS",
        provider=VINO,
        options={"load_config": '{"CPU": {"INFERENCE_NUM_THREADS": "x"}}'},
    ),
    "no_npu": Fails(
        code=5,
        says="hides its devices"
        if VINO in plugins.hidden()
        else "offers no device NPU on this host",
        provider=VINO,
        options={"device_type": "NPU"},
    ),
    "prefix": Fails(
        code=3,
        says="node_name_prefix 'a_' cannot be applied",
        models=("small", "tanh"),
        group={**SHARED, "node_name_prefix": "a_"},
    ),
    "middle_member": Fails(
        code=6,
        says="model unsupported: QNNExecutionProvider compiled nothing",
        models=("small", "unsupported", "tanh"),
        group={"sharing_groups": {"main": ["small", "unsupported", "tanh"]}},
    ),
    "last_member": Fails(
        code=6,
        says="model unsupported: QNNExecutionProvider compiled nothing",
        models=("small", "unsupported"),
        group={"sharing_groups": {"main": ["small", "unsupported"]}},
    ),
}


DEVICELESS = frozenset({"strings", "empty_graph_vino", "no_npu"})
"""Groups of OpenVINO that fail before a device is asked for, or for the lack of one."""


def needing(names: Iterable[str]) -> list[ParameterSet]:
    """Groups of the table, those of OpenVINO skipped where it has no device."""
    needs = {n: FAILED[n].provider == VINO and n not in DEVICELESS for n in names}
    return [pytest.param(n, marks=[on_openvino] if needed else []) for n, needed in needs.items()]


@pytest.fixture(scope="module")
def kept_going(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> tuple[Path, Result]:
    """One build of every group of the table, the good one among them."""
    folder = tmp_path_factory.mktemp("kept going")
    return folder, build(manifest_of(folder, sources, FAILED), "--keep-going")


@pytest.mark.parametrize("name", needing(name for name in FAILED if FAILED[name].code))
def test_a_group_fails_alone(name: str, kept_going: tuple[Path, Result]) -> None:
    folder, result = kept_going
    report = json.loads((folder / "dist" / "m.build.json").read_text(encoding="utf-8"))
    (group,) = [each for each in report["groups"] if each["group"] == name]
    failure = group["failure"]
    told = f"{failure['where']}: {failure['what']}: {failure['why']} {failure['remedy']}"
    assert (group["state"], failure["exit_code"]) == ("failed", FAILED[name].code), told
    assert FAILED[name].says in told
    errors = [line for line in result.stderr.splitlines() if line.startswith("error[")]
    assert any(f"{name}@default" in line for line in errors), errors
    assert not (folder / "dist" / "m" / "default" / name).exists()


def test_a_crash_is_told_where_others_of_its_group_are_ended_for_it(
    tmp_path: Path, sources: Path
) -> None:
    """Models that share nothing have a process each; the first may still work when the second dies,
    and is ended: that is not what is told, and no success.
    """
    group = Fails(code=6, says="", models=("tanh", "empty_batch", "small"))
    result = build(manifest_of(tmp_path, sources, {"g": group}))
    assert result.exit_code == 6
    assert "crashed while compiling model empty_batch, ended by SIGFPE" in result.stderr
    assert not (tmp_path / "dist" / "m").exists()


BUILT = {
    "good": ["small_ctx.onnx", "small_qnn.bin"],
    "good_other": ["other_ctx.onnx", "other_qnn.bin"],
    "good_parts": ["sinh_ctx.onnx", "sinh_qnn.bin"],
    "good_prefix": ["small_ctx.onnx", "small_qnn.bin"],
    "good_prefix_vino": [f"small_{VINO}.bin", "small_ctx.onnx"],
    "good_shared": ["small_ctx.onnx", "small_qnn.bin", "tanh_ctx.onnx"],
    "good_vino": [f"small_{VINO}.bin", "small_ctx.onnx"],
    "good_wide": ["wide_ctx.onnx", "wide_qnn.bin"],
}


def test_the_good_groups_are_built_beside_them(kept_going: tuple[Path, Result]) -> None:
    """One QNN process died of SIGFPE, others would have of SIGABRT: none of them is ours."""
    folder, result = kept_going
    unbuilt = 5 if lacking(VINO) is not None else 0
    codes = (g.code or (unbuilt if g.provider == VINO else 0) for g in FAILED.values())
    assert result.exit_code == next(code for code in codes if code)
    assert "Traceback" not in result.stderr
    assert files_in(folder / "dist" / "m") == [
        f"default/{group}/{name}"
        for group, names in BUILT.items()
        if FAILED[group].provider == QNN or lacking(VINO) is None
        for name in ["SHA256SUMS", *names]
    ]


@pytest.mark.parametrize(
    ("group", "where"),
    [
        ("good_prefix", "node name, partition name; the EP chooses the graph name"),
        pytest.param(
            "good_prefix_vino", "node name, partition name, graph name", marks=on_openvino
        ),
    ],
)
def test_the_report_says_where_the_prefix_is(
    group: str, where: str, kept_going: tuple[Path, Result]
) -> None:
    """Both EPs ignore ONNX Runtime's own option (section 2)."""
    document = (kept_going[0] / "dist" / "m.build.json").read_text(encoding="utf-8")
    (built,) = [each for each in json.loads(document)["groups"] if each["group"] == group]
    (told,) = [f for f in built["verify"]["findings"] if f["check"] == "prefix"]
    assert told["message"] == f"the prefix 'eye_' is in {where}"


def overwrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return apply


def attribute(name: str, value: str | int | None) -> Callable[[Path], None]:
    """Give the EPContext node an attribute of another value, or none."""

    def apply(folder: Path) -> None:
        model = onnx.load(folder / "small_ctx.onnx")
        (node,) = model.graph.node
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))
        onnx.save(model, folder / "small_ctx.onnx")

    return apply


def outside(path: Path) -> Path:
    """Where `instead` puts the context binary away."""
    return path.parent.parent / f"{path.parent.name}.bin"


def instead(make: Callable[[Path], object], name: str = "small_qnn.bin") -> Callable[[Path], None]:
    """Something else in the place of the context binary."""

    def apply(folder: Path) -> None:
        path = folder / name
        path.rename(outside(path))
        make(path)

    return apply


def a_linked_folder(folder: Path, name: str = "small_qnn.bin") -> None:
    outside = folder.parent / f"{folder.name}.outside"
    outside.mkdir()
    (folder / name).rename(outside / name)
    (folder / "sub").symlink_to(outside)
    attribute("ep_cache_context", f"sub/{name}")(folder)


def another_size(folder: Path) -> None:
    """The model's input and output are no longer those of the context."""
    model = onnx.load(folder / "small_ctx.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 64
    onnx.save(model, folder / "small_ctx.onnx")


def in_the_place(of: str, group: str, name: str) -> Callable[[Path], None]:
    """A context binary of another group of the same build."""

    def apply(folder: Path) -> None:
        built = Path((folder / "built_at").read_text(encoding="utf-8"))
        shutil.copy(built / group / name, folder / of)

    return apply


def random_bytes(data: bytes) -> bytes:
    return random.Random(0).randbytes(len(data))


BIN, VINO_BIN = "small_qnn.bin", f"small_{VINO}.bin"
DAMAGES: Mapping[str, tuple[Callable[[Path], None], str]] = {
    # what happened: (how, what verify says), where no sums tell that a file is another
    "cut short": (overwrite(BIN, lambda b: b[:-4096]), "is not a QNN context binary"),
    "one byte short": (overwrite(BIN, lambda b: b[:-1]), "is not a QNN context binary"),
    "lengthened": (overwrite(BIN, lambda b: b + b"x"), "is not a QNN context binary"),
    "zeros": (
        overwrite(BIN, lambda b: bytes(len(b))),
        "is not a context binary of QNNExecutionProvider",
    ),
    "random": (overwrite(BIN, random_bytes), "is not a context binary of QNNExecutionProvider"),
    "of a model of another batch": (
        in_the_place(BIN, "good_wide", "wide_qnn.bin"),
        "the context binary does not match its models: x of graph",
    ),
    "inputs of another size": (another_size, "in the model it has [1,64]"),
    "a linked folder": (a_linked_folder, "is a link"),
    "no source": (attribute("source", None), "has no `source`: no EP takes it"),
    "an empty source": (attribute("source", ""), "has no `source`: no EP takes it"),
    "embedded, by default": (attribute("embed_mode", None), "embed_mode is 1, but"),
    "main context 5": (attribute("main_context", 5), "main_context"),
    "no main context said": (attribute("main_context", None), "`main_context` is not written"),
    "the source of another EP": (attribute("source", VINO), f"is not a context binary of {VINO}"),
    "an attribute that nobody knows": (attribute("weights", "x"), "`weights` is not in the op"),
    "text": (
        overwrite(BIN, lambda b: b"version https://git-lfs\n" * 40),
        "is not a context binary of QNNExecutionProvider",
    ),
    "empty": (overwrite(BIN, lambda b: b""), "the file is empty"),
    "a table overwritten, SIGSEGV": (
        overwrite(BIN, lambda b: b[:584] + b"\xff" * 16 + b[600:]),
        "was ended by SIGSEGV",
    ),
    "deleted": (instead(lambda path: None), "it does not exist"),
    "a folder": (instead(lambda path: path.mkdir()), "it is a folder"),
    "a pipe": (instead(lambda path: os.mkfifo(path)), "it is not a regular file"),
    "a link outward": (
        instead(lambda path: path.symlink_to(outside(path))),
        "'small_qnn.bin' is a link",
    ),
    "a path upward": (attribute("ep_cache_context", "../small_qnn.bin"), "it has `..`"),
    "a path down and up": (attribute("ep_cache_context", "sub/../small_qnn.bin"), "it has `..`"),
    "an absolute path": (attribute("ep_cache_context", "/small_qnn.bin"), "it is absolute"),
    "embedded, it says": (attribute("embed_mode", 1), "embed_mode is 1, but"),
    "no main context": (attribute("main_context", 0), "no other node of the source"),
    "another node's name": (
        attribute("partition_name", "other"),
        "it was changed after it was built",
    ),
}


VINO_DAMAGES: Mapping[str, tuple[Callable[[Path], None], str]] = {
    # OpenVINO follows the path and the link; for the pipe it would wait, for ever.
    "cut short": (
        overwrite(VINO_BIN, lambda b: b[: len(b) // 2]),
        "broken OpenVINO context binary",
    ),
    "a path down and up": (attribute("ep_cache_context", f"sub/../{VINO_BIN}"), "it has `..`"),
    "a link outward": (instead(lambda path: path.symlink_to(outside(path)), VINO_BIN), "is a link"),
    "a pipe": (instead(lambda path: os.mkfifo(path), VINO_BIN), "it is not a regular file"),
    "zeros": (
        overwrite(VINO_BIN, lambda b: bytes(len(b))),
        "is not a context binary of OpenVINOExecutionProvider",
    ),
    "random": (overwrite(VINO_BIN, random_bytes), f"is not a context binary of {VINO}"),
    "text": (
        overwrite(VINO_BIN, lambda b: b"version https://git-lfs\n" * 40),
        f"is not a context binary of {VINO}",
    ),
    "empty": (overwrite(VINO_BIN, lambda b: b""), "the file is empty"),
    "deleted": (instead(lambda path: None, VINO_BIN), "it does not exist"),
    "a folder": (instead(lambda path: path.mkdir(), VINO_BIN), "it is a folder"),
    "a path upward": (attribute("ep_cache_context", f"../{VINO_BIN}"), "it has `..`"),
    "an absolute path": (attribute("ep_cache_context", f"/{VINO_BIN}"), "it is absolute"),
    "a linked folder": (lambda folder: a_linked_folder(folder, VINO_BIN), "is a link"),
    "no source": (attribute("source", None), "has no `source`: no EP takes it"),
    "embedded, by default": (attribute("embed_mode", None), "embed_mode is 1, but"),
    "an attribute that nobody knows": (attribute("weights", "x"), "`weights` is not in the op"),
    "main context 5": (attribute("main_context", 5), "main_context"),
    "another partition": (attribute("partition_name", "other"), "it has no blob 'other' for node"),
}


@pytest.fixture(scope="module")
def good(kept_going: tuple[Path, Result]) -> Path:
    return kept_going[0] / "dist" / "m" / "default" / "good"


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory, good: Path) -> dict[str, list[str]]:
    """What `epctx verify` finds wrong in a copy of the good group with each of the damages."""
    return damaged(tmp_path_factory.mktemp("damaged"), good, DAMAGES)


@pytest.fixture(scope="module")
def verified_vino(tmp_path_factory: pytest.TempPathFactory, good: Path) -> dict[str, list[str]]:
    """The same for OpenVINO."""
    return damaged(tmp_path_factory.mktemp("vino"), good.with_name("good_vino"), VINO_DAMAGES)


def damaged(
    root: Path, good: Path, damages: Mapping[str, tuple[Callable[[Path], None], str]]
) -> dict[str, list[str]]:
    """Verify copies of a good group, each with one of the damages, without sums but where they are
    there already.
    """
    for damage, (apply, _) in damages.items():
        if not (root / damage).exists():
            shutil.copytree(good, root / damage)
            (root / damage / "SHA256SUMS").unlink()
        (root / damage / "built_at").write_text(str(good.parent), encoding="utf-8")
        apply(root / damage)
    result = CliRunner().invoke(app, ["verify", str(root), "--format", "json"])
    assert result.exit_code == 7, result.stderr
    return {
        Path(folder["folder"]).name: [
            f"{f['check']}: {f['subject']}: {f['message']}"
            for f in folder["findings"]
            if f["outcome"] == "fail"
        ]
        for folder in json.loads(result.stdout)["folders"]
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(damage: str, verified: dict[str, list[str]]) -> None:
    found = verified[damage]
    assert any(DAMAGES[damage][1] in message for message in found), found


@on_openvino
@pytest.mark.parametrize("damage", VINO_DAMAGES)
def test_damage_is_found_for_openvino(damage: str, verified_vino: dict[str, list[str]]) -> None:
    found = verified_vino[damage]
    assert any(VINO_DAMAGES[damage][1] in message for message in found), found


def flipped(data: bytes) -> bytes:
    return data[:-9000] + bytes(255 - n for n in data[-9000:-8936]) + data[-8936:]


def zeroed(first: float, last: float) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        a, b = int(len(data) * first), int(len(data) * last)
        return data[:a] + bytes(b - a) + data[b:]

    return apply


SILENTLY_WRONG = {
    # The EPs load these and compute something else: only the digest knows.
    "64 bytes flipped": (overwrite(BIN, flipped), BIN),
    "zeros from 25 % to 50 %": (overwrite(BIN, zeroed(0.25, 0.5)), BIN),
    "zeros in the last tenth": (overwrite(BIN, zeroed(0.9, 1)), BIN),
    "another model's, same shapes": (in_the_place(BIN, "good_other", "other_qnn.bin"), BIN),
    "64 bytes flipped, OpenVINO": (overwrite(VINO_BIN, flipped), VINO_BIN),
    # It fills up its file with zeros, and does not miss them.
    "4096 bytes short, OpenVINO": (overwrite(VINO_BIN, lambda b: b[:-4096]), VINO_BIN),
    "one byte short, OpenVINO": (overwrite(VINO_BIN, lambda b: b[:-1]), VINO_BIN),
    "lengthened, OpenVINO": (overwrite(VINO_BIN, lambda b: b + b"x"), VINO_BIN),
    "another SDK, it says": (attribute("ep_sdk_version", "v99"), "small_ctx.onnx"),
    "another size, it says": (attribute("max_size", 1), "small_ctx.onnx"),
}


@pytest.fixture(scope="module")
def told_by_sums(tmp_path_factory: pytest.TempPathFactory, good: Path) -> dict[str, list[str]]:
    root = tmp_path_factory.mktemp("sums")
    here = {d: how for d, how in SILENTLY_WRONG.items() if of_qnn(d) or lacking(VINO) is None}
    for damage in here:
        group = good if of_qnn(damage) else good.with_name("good_vino")
        shutil.copytree(group, root / damage)
    return damaged(root, good, here)


def of_qnn(damage: str) -> bool:
    """Whether it is done to a group of QNN."""
    return "OpenVINO" not in damage


@pytest.mark.parametrize(
    "damage",
    [pytest.param(d, marks=[] if of_qnn(d) else [on_openvino]) for d in SILENTLY_WRONG],
)
def test_what_the_eps_compute_with_is_told_by_the_sums(
    damage: str, told_by_sums: dict[str, list[str]]
) -> None:
    name = SILENTLY_WRONG[damage][1]
    assert any(f.startswith(f"sums: {name}: ") for f in told_by_sums[damage]), told_by_sums


def test_names_that_were_swapped_are_found_before_qnn_ends_the_process(
    tmp_path: Path, good: Path
) -> None:
    """QNN finds the graphs of one context by node name: swapped, it ends in SIGABRT."""
    shutil.copytree(good.with_name("good_parts"), tmp_path / "swapped")
    (tmp_path / "swapped" / "SHA256SUMS").unlink()
    path = tmp_path / "swapped" / "sinh_ctx.onnx"
    model = onnx.load(path)
    one, other = (node for node in model.graph.node if node.op_type == "EPContext")
    one.name, other.name = other.name, one.name
    onnx.save(model, path)
    result = CliRunner().invoke(app, ["verify", str(path.parent)])
    assert result.exit_code == 7
    assert "the context binary does not match its models: graph QNN" in result.stdout


def test_a_shared_context_is_refused_where_it_would_end_the_process(
    tmp_path: Path, good: Path
) -> None:
    """Loaded first in a process, on the simulator, it is a SIGSEGV."""
    model = good.with_name("good_shared") / "tanh_ctx.onnx"
    ran = epctx("run", model, cwd=tmp_path)
    assert ran.returncode == 5, ran.stderr
    assert "graphs of several sessions" in ran.stderr


def test_what_is_compiled_already_is_no_source(tmp_path: Path, good: Path) -> None:
    """QNN says that it "returned a NULL EPContext node"; OpenVINO compiles it once more."""
    for provider in (QNN, VINO):
        group = Fails(code=4, says="", provider=provider, models=("small_ctx",))
        manifest = manifest_of(tmp_path, good, {"g": group})
        result = build(manifest)
        assert result.exit_code == 4, result.stderr
        assert "build from the source model of this EPContext" in result.stderr
    assert not (tmp_path / "dist" / "m").exists()


def test_inspect_survives_what_crashes_the_system_library(tmp_path: Path, good: Path) -> None:
    shutil.copytree(good, tmp_path / "g")
    DAMAGES["a table overwritten, SIGSEGV"][0](tmp_path / "g")
    for name in (BIN, "small_ctx.onnx"):
        result = CliRunner().invoke(app, ["inspect", str(tmp_path / "g" / name)])
        assert "was ended by SIGSEGV" in result.stdout + result.stderr


def test_outputs_never_lie_over_sources(tmp_path: Path, sources: Path) -> None:
    manifest = manifest_of(tmp_path, sources, {"g": Fails(code=0, says="")})
    source = tmp_path / "dist" / "m" / "default" / "g" / "small.onnx"
    source.parent.mkdir(parents=True)
    shutil.move(tmp_path / "models" / "small.onnx", source)
    text = manifest.read_text(encoding="utf-8").replace(
        "models/small.onnx", "dist/m/default/g/small.onnx"
    )
    manifest.write_text(text, encoding="utf-8")
    result = build(manifest)
    assert result.exit_code == 2
    assert "small.onnx: is an input of the build, but lies" in result.stderr
    assert files_in(tmp_path / "dist") == ["m/default/g/small.onnx"]


def test_a_stale_binary_is_gone(tmp_path: Path, sources: Path) -> None:
    manifest = manifest_of(tmp_path, sources, {"g": Fails(code=0, says="")})
    stale = tmp_path / "dist" / "m" / "default" / "g" / "small_qnn.bin"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another build")
    (stale.parent / "tanh_qnn.bin").write_bytes(b"of another build")
    result = build(manifest, "--no-verify")
    assert result.exit_code == 0, result.stderr
    assert files_in(stale.parent) == ["SHA256SUMS", "small_ctx.onnx", "small_qnn.bin"]
    assert b"of another build" not in stale.read_bytes()
