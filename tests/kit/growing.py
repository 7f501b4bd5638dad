"""What a small file can grow in: each dimension with the work that a command does with it."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from epctx.cli.app import app
from tests.kit.inline import Inline

Make = Callable[[Path, int], Sequence[str]]
FLOAT: Final = TensorProto.FLOAT
_MANIFEST: Final = """schema_version: 1
name: m
execution_providers: {r: {provider: ReferenceExecutionProvider}}
defaults: {execution_providers: [r], verify: {inputs: {count: 1}}}
"""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """Something that there can be any number of.

    Attributes:
        what: there is so much of.
        command: that meets it.
        make: writes files with `n` of it into a folder; the command line, without `epctx`.
        sample: `n` for a look at how the count of steps grows.
        code: what the command ends with, where it does not do well.
        full: `n` from which processor time is measured.
    """

    what: str
    command: str
    make: Make
    sample: int
    full: int
    code: int


DIMENSIONS: Final[list[Dimension]] = []


def carry_out(command: Sequence[str], folder: Path, code: int) -> None:
    """Run a command in this process, jobs of workers too; it does well, or ends with `code`."""
    out, err = io.StringIO(), io.StringIO()
    with (
        _in(folder),
        mock.patch("epctx.worker.pool.Worker", Inline),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            app(list(command), prog_name="epctx")
        except SystemExit as ended:
            assert ended.code in (0, None, code), err.getvalue()[-2000:]


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    with chdir(folder), mock.patch.dict("os.environ", {"EPCTX_CACHE_DIR": str(folder / "cache")}):
        yield


def dimension(
    what: str, command: str, *, sample: int, full: int, code: int = 0
) -> Callable[[Make], Make]:
    """Register what makes a dimension."""

    def register(make: Make) -> Make:
        DIMENSIONS.append(
            Dimension(what=what, command=command, make=make, sample=sample, full=full, code=code)
        )
        return make

    return register


def manifest(folder: Path, text: str) -> None:
    """Write `m.yaml`, beside a model `a.onnx`."""
    (folder / "m.yaml").write_text(_MANIFEST + text, encoding="utf-8")
    node = helper.make_node("Relu", ["x"], ["y"])
    if not (folder / "a.onnx").exists():
        (folder / "a.onnx").write_bytes(_model([node]).SerializeToString())


def _model(
    nodes: Sequence[onnx.NodeProto],
    *,
    weights: Sequence[onnx.TensorProto] = (),
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    taken, given = (
        [helper.make_tensor_value_info(name, FLOAT, [4]) for name in names]
        for names in (inputs, outputs)
    )
    graph = helper.make_graph(list(nodes), "g", taken, given, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _models(texts: Sequence[str]) -> str:
    return "models:\n" + "".join(f"  {text}\n" for text in texts)


def _groups(models: Sequence[str]) -> str:
    """Groups of one model each."""
    listed = "".join(f"  g{i}: {{models: [{model}]}}\n" for i, model in enumerate(models))
    return f"model_groups:\n{listed}"


def _targets(model: str, n: int) -> str:
    """A group of one model, and `n` targets of it."""
    listed = "".join(f"  t{i}: {{include: [g]}}\n" for i in range(n))
    return f"model_groups: {{g: {{models: [{model}]}}}}\ntargets:\n{listed}"


# ------------------------------------------------------------------------------------ manifests


@dimension("misspelt names, of as many", "validate", sample=40, full=500, code=3)
def misspelt(folder: Path, n: int) -> Sequence[str]:
    models = _models([f"model{i}x: {{path: a.onnx}}" for i in range(n)])
    names = ", ".join(f"mode1{i}x" for i in range(n))
    manifest(folder, f"{models}model_groups: {{g: {{models: [{names}]}}}}\n")
    return ("validate", "m.yaml")


@dimension("unknown keys", "validate", sample=40, full=500, code=3)
def unknown_keys(folder: Path, n: int) -> Sequence[str]:
    keys = ", ".join(f"modelz{i}: 1" for i in range(n))
    manifest(
        folder, f"{_models(['a: {path: a.onnx}'])}model_groups: {{g: {{models: [a], {keys}}}}}\n"
    )
    return ("validate", "m.yaml")


@dimension("names, one of them twice", "validate", sample=100, full=500, code=3)
def repeated(folder: Path, n: int) -> Sequence[str]:
    models = _models([f"m{i}: {{path: a.onnx}}" for i in range(n)])
    names = ", ".join(f"m{i % n}" for i in range(n + 1))
    manifest(folder, f"{models}model_groups: {{g: {{models: [{names}]}}}}\n")
    return ("validate", "m.yaml")


@dimension("groups", "plan", sample=20, full=200)
def groups(folder: Path, n: int) -> Sequence[str]:
    manifest(folder, _models(["a: {path: a.onnx}"]) + _groups(["a"] * n))
    return ("plan", "m.yaml")


@dimension("targets", "plan", sample=20, full=200)
def targets(folder: Path, n: int) -> Sequence[str]:
    manifest(folder, _models(["a: {path: a.onnx}"]) + _targets("a", n))
    return ("plan", "m.yaml")


@dimension("models of a group that shares", "plan", sample=80, full=200)
def sharing(folder: Path, n: int) -> Sequence[str]:
    names = ", ".join(f"m{i}" for i in range(n))
    models = _models([f"m{i}: {{path: a.onnx}}" for i in range(n)])
    group = f"model_groups: {{g: {{models: [{names}], sharing_groups: {{s: [{names}]}}}}}}\n"
    manifest(folder, models + group)
    return ("plan", "m.yaml")


@dimension("parts of a composition", "validate", sample=20, full=200)
def parts(folder: Path, n: int) -> Sequence[str]:
    models = _models([f"m{i}: {{path: a.onnx}}" for i in range(n)])
    groups = _groups([f"m{i}" for i in range(n)])
    chain = "".join(f"      m{i}: {{inputs: {{x: {{part: m{i - 1}}}}}}}\n" for i in range(1, n))
    compose = f"compose:\n  c:\n    parts:\n      m0: {{}}\n{chain}"
    manifest(folder, f"{models}{groups}{compose}")
    return ("validate", "m.yaml", "--no-models")


def own_models(folder: Path, n: int) -> str:
    """Write `n` models, each with a weight of its own; what a manifest says of them."""
    for i in range(n):
        weight = helper.make_tensor("w", FLOAT, [4], [float(i)] * 4)
        model = _model([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight])
        (folder / f"m{i}.onnx").write_bytes(model.SerializeToString())
    return _models([f"m{i}: {{path: m{i}.onnx}}" for i in range(n)])


@dimension("groups, each of a model of its own", "build", sample=3, full=25)
def built_groups(folder: Path, n: int) -> Sequence[str]:
    manifest(folder, own_models(folder, n) + _groups([f"m{i}" for i in range(n)]))
    return ("build", "m.yaml")


@dimension("models of a group", "build", sample=3, full=25)
def built_models(folder: Path, n: int) -> Sequence[str]:
    names = ", ".join(f"m{i}" for i in range(n))
    manifest(folder, f"{own_models(folder, n)}model_groups: {{g: {{models: [{names}]}}}}\n")
    return ("build", "m.yaml")


@dimension("targets", "build", sample=3, full=25)
def built_targets(folder: Path, n: int) -> Sequence[str]:
    manifest(folder, own_models(folder, 1) + _targets("m0", n))
    return ("build", "m.yaml")


# --------------------------------------------------------------------------------------- models

Builder = Callable[[int], onnx.ModelProto]


def built(what: str, *, sample: int, full: int) -> Callable[[Builder], Builder]:
    """A dimension of a model that `build` meets."""

    def register(builder: Builder) -> Builder:
        @dimension(what, "build", sample=sample, full=full)
        def make(folder: Path, n: int) -> Sequence[str]:
            (folder / "a.onnx").write_bytes(builder(n).SerializeToString())
            manifest(
                folder, f"{_models(['a: {path: a.onnx}'])}model_groups: {{g: {{models: [a]}}}}\n"
            )
            return ("build", "m.yaml", "--jobs", "1", "--no-cache")

        return builder

    return register


def _chain(n: int) -> list[onnx.NodeProto]:
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    return [
        helper.make_node("Relu" if i % 2 else "Neg", [names[i]], [names[i + 1]]) for i in range(n)
    ]


@built("nodes", sample=40, full=1000)
def nodes(n: int) -> onnx.ModelProto:
    return _model(_chain(n))


@built("edges into one node", sample=40, full=1000)
def edges(n: int) -> onnx.ModelProto:
    return _model([helper.make_node("Sum", ["x"] * n, ["y"])])


@built("readers of one value", sample=40, full=500)
def readers(n: int) -> onnx.ModelProto:
    many = [helper.make_node("Selu", ["x"], [f"v{i}"], alpha=float(i)) for i in range(n)]
    return _model([*many, helper.make_node("Sum", [f"v{i}" for i in range(n)], ["y"])])


@built("graph inputs of one node", sample=40, full=1000)
def fed(n: int) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(n)]
    return _model([helper.make_node("Sum", names, ["y"])], inputs=names)


@built("copies of one value", sample=40, full=1000)
def copies(n: int) -> onnx.ModelProto:
    names = [f"v{i}" for i in range(n)]
    many = [helper.make_node("Identity", ["x"], [name]) for name in names]
    return _model([*many, helper.make_node("Sum", names, ["y"])])


@built("nodes of nested functions that undo each other", sample=128, full=1024)
def undone(n: int) -> onnx.ModelProto:
    depth = n.bit_length() - 1
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("l", 1)]
    functions = [
        helper.make_function(
            "l",
            f"f{level}",
            ["x"],
            ["y"],
            [
                helper.make_node(op, [source], [target], domain=domain)
                for source, target in (("x", "t"), ("t", "y"))
            ],
            imports,
        )
        for level in range(depth)
        for op, domain in [("Neg", "") if level == depth - 1 else (f"f{level + 1}", "l")]
    ]
    model = _model([helper.make_node("f0", ["x"], ["y"], domain="l")])
    model.functions.extend(functions)
    model.opset_import.extend(imports[1:])
    return model


@built("nodes that nobody reads", sample=40, full=1000)
def dead(n: int) -> onnx.ModelProto:
    many = [helper.make_node("Relu", ["x"], [f"v{i}"]) for i in range(n)]
    return _model([*many, helper.make_node("Relu", ["x"], ["y"])])


@built("numbers of an attribute", sample=200, full=20_000)
def attributes(n: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Constant", [], ["c"], value_floats=[1.0] * n),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    return _model(nodes)


@built("initializers", sample=160, full=500)
def initializers(n: int) -> onnx.ModelProto:
    weights = [helper.make_tensor(f"w{i}", FLOAT, [4], [float(i)] * 4) for i in range(n)]
    return _model(
        [helper.make_node("Sum", ["x", *(w.name for w in weights)], ["y"])], weights=weights
    )


@built("times 16 KiB of weights", sample=20, full=400)
def weights(n: int) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((n, 1024, 4), np.float32), "w")
    axes = numpy_helper.from_array(np.array([0, 1], np.int64), "axes")
    nodes = [
        helper.make_node("Add", ["x", "w"], ["s"]),
        helper.make_node("ReduceMax", ["s", "axes"], ["y"], keepdims=0),
    ]
    return _model(nodes, weights=[weight, axes])


@built("constants of one name", sample=150, full=500)
def same_name(n: int) -> onnx.ModelProto:
    weights = [helper.make_tensor(f"w{i // 2}", FLOAT, [4], [1.0] * 4) for i in range(2 * n)]
    names = {w.name: None for w in weights}
    return _model([helper.make_node("Sum", ["x", *names], ["y"])], weights=weights)


@built("graph inputs and outputs", sample=20, full=200)
def border(n: int) -> onnx.ModelProto:
    pairs = [(f"x{i}", f"y{i}") for i in range(n)]
    nodes = [helper.make_node("Relu", [x], [y]) for x, y in pairs]
    return _model(nodes, inputs=[x for x, _ in pairs], outputs=[y for _, y in pairs])


@built("metadata", sample=100, full=5000)
def metadata(n: int) -> onnx.ModelProto:
    model = _model(_chain(1))
    for i in range(n):
        model.metadata_props.add(key=f"k{i}", value="v")
    return model


@built("levels of subgraphs", sample=4, full=6)
def depth(n: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["r"])]
    for level in range(n):
        nodes = [_branch("x", "y" if level == n - 1 else f"v{level}", nodes, level)]
    return _chosen(nodes)


@built("nodes with subgraphs", sample=10, full=100)
def branches(n: int) -> onnx.ModelProto:
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    return _chosen(
        [
            _branch(names[i], names[i + 1], [helper.make_node("Relu", [names[i]], [f"t{i}"])], i)
            for i in range(n)
        ]
    )


def _branch(read: str, made: str, nodes: Sequence[onnx.NodeProto], number: int) -> onnx.NodeProto:
    """An If node with these nodes in one of its branches."""
    other = [helper.make_node("Neg", [read], [f"e{number}"])]
    then, else_ = (
        helper.make_graph(
            list(body),
            f"{name}{number}",
            [],
            [helper.make_tensor_value_info(body[-1].output[0], FLOAT, [4])],
        )
        for name, body in (("then", nodes), ("else", other))
    )
    return helper.make_node("If", ["c"], [made], then_branch=then, else_branch=else_)


def _chosen(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """A model of If nodes, which all read `c`."""
    model = _model(nodes)
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return model


@built("local functions that are called", sample=20, full=200)
def functions(n: int) -> onnx.ModelProto:
    names = ["x", *(f"v{i}" for i in range(1, n)), "y"]
    model = _model(
        [helper.make_node(f"F{i}", [names[i]], [names[i + 1]], domain="own") for i in range(n)]
    )
    opsets = [helper.make_opsetid("", 21)]
    for i in range(n):
        body = [helper.make_node("Relu", ["a"], ["b"])]
        model.functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


@built("equal nodes", sample=40, full=500)
def equal(n: int) -> onnx.ModelProto:
    many = [helper.make_node("Exp", ["x"], [f"v{i}"]) for i in range(n)]
    return _model([*many, helper.make_node("Sum", [f"v{i}" for i in range(n)], ["y"])])


@built("nodes in the wrong order", sample=40, full=1000)
def unsorted(n: int) -> onnx.ModelProto:
    return _model(_chain(n)[::-1])


@built("foldable nodes", sample=40, full=500)
def foldable(n: int) -> onnx.ModelProto:
    weights = [helper.make_tensor("w", TensorProto.INT64, [1], [1])]
    names = ["w", *(f"v{i}" for i in range(1, n + 1))]
    nodes = [helper.make_node("Abs", [names[i]], [names[i + 1]]) for i in range(n)]
    nodes += [
        helper.make_node("Cast", [names[-1]], ["f"], to=FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    return _model(nodes, weights=weights)


@dimension("patterns of excluded nodes", "plan", sample=20, full=200, code=3)
def excluded(folder: Path, n: int) -> Sequence[str]:
    (folder / "a.onnx").write_bytes(_model(_chain(50)).SerializeToString())
    patterns = ", ".join(f'"layer{i}*"' for i in range(n))
    group = f"{{g: {{models: [a], partition: {{exclude: {{nodes: [{patterns}]}}}}}}}}"
    manifest(folder, f"{_models(['a: {path: a.onnx}'])}model_groups: {group}\n")
    return ("plan", "m.yaml", "--partition")


# ----------------------------------------------------------------------- what other commands read


@dimension("nodes", "validate", sample=40, full=2000, code=3)
def validated(folder: Path, n: int) -> Sequence[str]:
    (folder / "a.onnx").write_bytes(_model(_chain(n)).SerializeToString())
    group = '{g: {models: [a], partition: {exclude: {op_types: [TopK], nodes: ["layer0*"]}}}}'
    manifest(folder, f"{_models(['a: {path: a.onnx}'])}model_groups: {group}\n")
    return ("validate", "m.yaml")


@dimension("nodes", "inspect", sample=40, full=2000)
def inspected(folder: Path, n: int) -> Sequence[str]:
    (folder / "a.onnx").write_bytes(_model(_chain(n)).SerializeToString())
    return ("inspect", "a.onnx")


@dimension("lines of SHA256SUMS", "verify", sample=40, full=2000, code=7)
def sums(folder: Path, n: int) -> Sequence[str]:
    (folder / "a_ctx.onnx").write_bytes(_model(_chain(1)).SerializeToString())
    lines = "".join(f"{i:064x}  file{i}.bin\n" for i in range(n))
    (folder / "SHA256SUMS").write_text(lines, encoding="ascii")
    return ("verify", ".")


def compared(what: str, command: Sequence[str]) -> None:
    """A dimension of what a build wrote: `n` groups."""

    @dimension("groups that were built", what, sample=4, full=25)
    def make(folder: Path, n: int) -> Sequence[str]:
        listed = "".join(f"  g{i}: {{models: [a]}}\n" for i in range(n))
        manifest(folder, f"{_models(['a: {path: a.onnx}'])}model_groups:\n{listed}")
        carry_out(("build", "m.yaml", "--jobs", "1"), folder, 0)
        return command


compared("report", ("report", "dist/m.build.json", "--out", "r.html"))
compared("diff", ("diff", "dist/m", "dist/m"))
compared("build, again", ("build", "m.yaml"))
compared("build --locked", ("build", "m.yaml", "--locked"))
compared("verify --lock", ("verify", "dist/m", "--lock", "m.lock.yaml"))
compared("package", ("package", "m.yaml"))


@dimension("groups of a lock, of which the cache has nothing", "plan", sample=3, full=25)
def locked_elsewhere(folder: Path, n: int) -> Sequence[str]:
    carry_out(built_groups(folder, n), folder, 0)
    shutil.rmtree(folder / "cache")
    return ("plan", "m.yaml")
