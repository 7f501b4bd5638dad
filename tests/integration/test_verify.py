"""Verification of what the reference EP built: each check passes, and fires when it should."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from epctx import api, codec
from epctx import lockfile as locks
from epctx.errors import LockError, UsageError
from epctx.files.digest import of_file
from epctx.lockfile.types import Lock, LockedFile, LockedGroup, LockedSession
from epctx.manifest import PartitionSettings
from epctx.parsing.schema import apply as schema
from epctx.verification.findings import POLICIES, Finding, VerifyReport
from tests.kit import folders

pytestmark = pytest.mark.usefixtures("jobs_inline")

MANIFEST = """
schema_version: 1
name: demo
models:
  wide: {path: source.onnx, dimensions: {batch: 8}}
  narrow: {path: source.onnx, dimensions: {batch: 1}}
  lone: {path: source.onnx, dimensions: {batch: 2}}
execution_providers:
  npu: {provider: ReferenceExecutionProvider, options: {hardware_architecture: npu-v2}}
  nothing_else: {provider: ReferenceExecutionProvider, options: {source: other, ops: [Tanh]}}
model_groups:
  pair:
    models: [wide, narrow]
    execution_providers: [npu]
    sharing_groups: {main: [wide, narrow]}
  single:
    models: [lone]
    execution_providers: [nothing_else]
    embed_mode: 1
    node_name_prefix: p_
    external_initializers: {file: lone.data}
    verify: {inputs: {count: 2}}
"""


def source(path: Path) -> None:
    """softmax(tanh(x @ w + b) @ v): a little of everything that the checks look at."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(shape[0])
        return numpy_helper.from_array(values.astype(np.float32), name)

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="mm1"),
            helper.make_node("Add", ["h", "b"], ["i"], name="add"),
            helper.make_node("Tanh", ["i"], ["j"], name="tanh"),
            helper.make_node("MatMul", ["j", "v"], ["k"], name="mm2"),
            helper.make_node("Softmax", ["k"], ["y"], name="softmax"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32])],
        [weight("w", 64, 64), weight("b", 64), weight("v", 64, 32)],
    )
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest, its source, and what was built of them in `dist/`."""
    root = tmp_path_factory.mktemp("built")
    source(root / "source.onnx")
    (root / "demo.yaml").write_text(MANIFEST, encoding="utf-8")
    report = api.build(root / "demo.yaml", out=root / "dist")
    assert {group.state for group in report.groups} == {"built"}
    for group in report.groups:
        assert group.verify is not None
        outcomes = {f.outcome for f in group.verify.findings}
        assert outcomes == {"pass"}, group.verify.findings
    return root


@pytest.fixture
def built(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def pair(built: Path) -> Path:
    return built / "dist" / "demo" / "default" / "pair"


def check(built: Path, name: str, **changes: Any) -> list[Finding]:
    """Findings of a group with its manifest, without a process of its own."""
    from epctx.parsing import load

    groups = load.load(built / "demo.yaml").targets[0].groups
    group = next(group for group in groups if group.name == name)
    folder = built / "dist" / "demo" / "default" / name
    return list(folders.report(folder, policies=POLICIES, group=group, **changes).findings)


def failures(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    return [(f.policy, f.check, f.subject) for f in findings if f.outcome == "fail"]


def resum(folder: Path) -> None:
    """As if epctx had built it so: what the sums cannot tell, the other checks must."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")


def test_everything_that_was_built_passes(original: Path) -> None:
    report = api.verify(original / "dist", manifest=original / "demo.yaml", strict=True)
    assert report.passed and not list(report.findings("not checkable"))
    assert [f.models for f in report.folders if f.models] == [
        ("wide_ctx.onnx", "narrow_ctx.onnx"),
        ("lone_ctx.onnx",),
    ]
    numbers = [n for folder in report.folders for n in folder.numbers]
    assert {(n.model, n.output, n.sessions) for n in numbers} == {
        ("wide_ctx.onnx", "y", "files"),
        ("narrow_ctx.onnx", "y", "files"),
        ("lone_ctx.onnx", "y", "files"),
    }


def test_both_reports_are_as_their_schema_says(original: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(schema.text("report")))
    built = json.loads((original / "dist" / "demo.build.json").read_text(encoding="utf-8"))
    validator.validate(built)
    assert built["groups"][0]["verify"]["numbers"]
    found = folders.report(pair(original), policies=POLICIES)
    verified = json.loads(codec.encode(VerifyReport(folders=(found,))))
    validator.validate(verified)
    del verified["folders"][0]["findings"][0]["outcome"]
    assert not validator.is_valid(verified)
    del built["groups"][0]["verify"]["numbers"][0]["comparison"]["dtype"]
    assert not validator.is_valid(built)


def test_a_group_copied_elsewhere_without_its_sources_passes(built: Path, tmp_path: Path) -> None:
    shutil.copytree(pair(built), tmp_path / "shipped")
    shutil.rmtree(built)
    report = api.verify(tmp_path / "shipped")
    assert report.passed
    assert {f.policy for f in report.findings("not checkable")} == {"compatibility", "numbers"}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_a_flipped_byte_in_a_context_binary_is_named_and_nothing_loads_it(built: Path) -> None:
    binary = pair(built) / "wide_reference.bin"
    flip(binary, binary.stat().st_size - 100)
    findings = check(built, "pair")
    assert failures(findings) == [("integrity", "sums", "wide_reference.bin")]
    unrun = [f for f in findings if f.policy == "numbers"]
    assert {f.outcome for f in unrun} == {"not checkable"}
    assert all("integrity failed: wide_reference.bin was changed" in f.message for f in unrun)


def test_a_wrong_binary_with_right_sums_does_not_load(built: Path) -> None:
    binary = pair(built) / "wide_reference.bin"
    flip(binary, binary.stat().st_size - 100)
    resum(pair(built))
    assert ("numbers", "loads", "wide_ctx.onnx") in failures(check(built, "pair"))


def change_initializer(path: Path) -> None:
    """One wrong weight, outside every context."""
    data = bytearray(path.read_bytes())
    data[:4] = np.float32(5).tobytes()
    path.write_bytes(data)


def test_one_wrong_weight_is_caught_by_the_numbers(built: Path) -> None:
    folder = built / "dist" / "demo" / "default" / "single"
    change_initializer(folder / "lone.data")
    resum(folder)
    findings = check(built, "single")
    assert set(failures(findings)) == {("numbers", "outputs", "lone_ctx.onnx")}
    (first, *_) = [f for f in findings if f.outcome == "fail"]
    assert "output 'y': relative error" in first.message and "worst at" in first.message


def test_another_source_than_it_was_built_from_is_caught(built: Path) -> None:
    changed = onnx.load(built / "source.onnx")
    weights = changed.graph.initializer[0]
    values = numpy_helper.to_array(weights).copy()
    values[0, 0] += 1
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    onnx.save(changed, built / "source.onnx")
    assert set(failures(check(built, "pair"))) == {
        ("numbers", "outputs", "wide_ctx.onnx"),
        ("numbers", "outputs", "narrow_ctx.onnx"),
    }


def edit(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def context_node(model: onnx.ModelProto) -> onnx.NodeProto:
    nodes = model.graph.node
    found: onnx.NodeProto = next(node for node in nodes if node.op_type == "EPContext")
    return found


def point_elsewhere(model: onnx.ModelProto) -> None:
    for attribute in context_node(model).attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = b"../wide_reference.bin"


def rename_node(model: onnx.ModelProto) -> None:
    context_node(model).name = "renamed"


def drop_types(model: onnx.ModelProto) -> None:
    del model.graph.value_info[:]


def annotate(model: onnx.ModelProto) -> None:
    model.doc_string = "edited by hand"


@pytest.mark.parametrize(
    ("group", "file", "change", "expected"),
    [
        ("pair", "narrow_ctx.onnx", point_elsewhere, "ep_cache_context"),
        ("single", "lone_ctx.onnx", rename_node, "prefix"),
        ("single", "lone_ctx.onnx", drop_types, "types"),
        ("single", "lone_ctx.onnx", annotate, "canonical"),
    ],
)
def test_an_edited_model_does_not_conform(
    built: Path,
    group: str,
    file: str,
    change: Callable[[onnx.ModelProto], None],
    expected: str,
) -> None:
    folder = built / "dist" / "demo" / "default" / group
    edit(folder / file, change)
    resum(folder)
    assert ("conformance", expected, file) in failures(check(built, group))


def test_stale_and_missing_files_are_named(built: Path) -> None:
    folder = pair(built)
    shutil.copy(folder / "wide_reference.bin", folder / "old_reference.bin")
    (folder / "narrow_ctx.onnx").unlink()
    found = failures(check(built, "pair"))
    assert ("integrity", "sums", "narrow_ctx.onnx") in found
    assert ("integrity", "sums", "old_reference.bin") in found
    assert ("conformance", "unreferenced", "old_reference.bin") in found
    assert ("conformance", "files", ".") in found


def test_a_group_that_is_not_there(built: Path) -> None:
    shutil.rmtree(pair(built))
    report = api.verify(built / "dist", manifest=built / "demo.yaml")
    (failed,) = report.findings("fail")
    assert failed.message == "the manifest demo.yaml lists pair@default, but it does not exist"
    with pytest.raises(UsageError, match="does not exist"):
        api.verify(pair(built))


def test_a_model_for_another_host_is_said_not_to_be_for_this_one(built: Path) -> None:
    report = api.verify(pair(built) / "wide_ctx.onnx")
    (finding,) = [f for f in report.findings() if f.policy == "compatibility"]
    assert finding.outcome == "not checkable" and "npu-v2" in finding.message


def locked(root: Path) -> Lock:
    """A lock that holds what was built."""
    groups = {}
    for folder in sorted((root / "dist" / "demo" / "default").iterdir()):
        outputs = {
            path.name: LockedFile(sha256=of_file(path, "sha256").hex, size=path.stat().st_size)
            for path in sorted(folder.iterdir())
            if path.name != "SHA256SUMS"
        }
        session = LockedSession(cpu=None, key="k:1", models=("m",), outputs=outputs, sharing=None)
        groups[f"default/{folder.name}"] = LockedGroup(
            embed_mode=0,
            execution_providers=(),
            external_initializers=None,
            models={},
            node_name_prefix="",
            optimize="basic",
            partition=PartitionSettings(
                exclude_nodes=(),
                exclude_op_types=(),
                max_partitions=None,
                min_nodes=1,
                require_coverage=None,
            ),
            passes=(),
            passes_of_others={},
            session_groups={"m": session},
            session_options={},
        )
    return Lock(execution_providers={}, groups=groups, name="demo", sources={}, toolchain={})


def test_a_lock_tells_of_what_was_built_otherwise(built: Path) -> None:
    path = built / "demo.lock.yaml"
    path.write_text(locks.text(locked(built)), encoding="utf-8")
    assert api.verify(built / "dist", lock=path).passed
    folder = pair(built)
    binary = folder / "wide_reference.bin"
    flip(binary, binary.stat().st_size - 100)
    resum(folder)  # right by its own sums, and not what was locked
    report = api.verify(folder, lock=path)
    failed = {(f.check, f.subject) for f in report.findings("fail")}
    assert failed == {("lock", "wide_reference.bin"), ("lock", "SHA256SUMS")}
    with pytest.raises(LockError, match="there is no lock"):
        api.verify(folder, lock=built / "gone.yaml")


# --- the commands --------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str]:
    from epctx.cli.app import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout


def test_verify_as_a_command(built: Path) -> None:
    code, printed = run("verify", built / "dist", "--manifest", built / "demo.yaml", "--strict")
    assert code == 0 and printed.splitlines()[-1].startswith(
        "verified on generated inputs: 2 folders, 3 models, "
    )


def test_a_source_that_no_ep_knows_is_7_when_strict(tmp_path: Path) -> None:
    """Nothing of it fails; what nobody here can read is not called right either."""
    made = folders.model(folders.context_node(source="AlienExecutionProvider"))
    folders.write(tmp_path / "alien", made)
    code, printed = run("verify", tmp_path / "alien")
    assert code == 0 and "no EP on this host accepts the source 'AlienExecutionProvider'" in printed
    assert run("verify", tmp_path / "alien", "--strict")[0] == 7


def test_numbers_that_are_required_and_not_run_are_7(built: Path, tmp_path: Path) -> None:
    """`--strict` takes everything for a failure that a host cannot check, and need not be given."""
    dist, manifest = built / "dist", built / "demo.yaml"
    code, printed = run("verify", dist, "--require", "numbers")
    assert code == 7 and printed.count("[numbers/required]") == 2, "a folder each"
    unrun = "wide_ctx.onnx, narrow_ctx.onnx: required numbers were not run: its source is unknown"
    assert unrun in printed
    assert "-> give the manifest with --manifest" in printed
    code, printed = run("verify", dist, "--require", "numbers", "--manifest", manifest)
    assert code == 0 and printed.splitlines()[-1].startswith("verified on generated inputs: 2 fol")

    told = manifest.read_text(encoding="utf-8").replace("inputs: {count: 2}", "numbers: off")
    manifest.write_text(told, encoding="utf-8")
    assert run("verify", dist, "--manifest", manifest)[0] == 0
    told = told.replace("model_groups:", "defaults: {verify: {require: [numbers]}}\nmodel_groups:")
    manifest.write_text(told, encoding="utf-8")
    (failed,) = api.verify(dist, manifest=manifest).findings("fail")
    assert failed.subject == "lone_ctx.onnx" and failed.check == "required"
    assert failed.message == "required numbers were not run: the manifest says `numbers: off`"
    assert failed.remedy == "set `verify.numbers` to full or generating"
    code, _ = run("build", manifest, "--out", tmp_path / "out", "--no-cache")
    assert code == 7 and not (tmp_path / "out").exists(), "nothing is compiled for it"
    (alien := tmp_path / "alien").mkdir()
    folders.write(alien, folders.model(folders.context_node(source="AlienExecutionProvider")))
    assert run("verify", alien, "--require", "numbers")[0] == 7


def test_what_can_be_required_is_a_list_of_known_words(built: Path) -> None:
    wrong: tuple[Any, ...] = ("numbers", ["number"])
    for given in wrong:
        with pytest.raises(UsageError, match="require is"):
            api.verify(built / "dist", require=given)


def test_a_failed_verification_is_7_and_its_report_json(built: Path) -> None:
    flip(pair(built) / "wide_reference.bin", 70)
    code, printed = run("verify", pair(built), "--format", "json")
    report = codec.decode(printed, VerifyReport)
    assert code == 7 and not report.passed
    assert [f.subject for f in report.findings("fail")] == ["wide_reference.bin"]


def test_inspect_tells_what_sharing_saves(built: Path) -> None:
    code, printed = run("inspect", pair(built) / "wide_reference.bin", "--format", "json")
    info = json.loads(printed)["binary"]["info"]
    used = [graph["weights"] for graph in info["graphs"]]
    assert code == 0 and len(used) == 2 and used[0] == used[1] == info["stored"]
    code, printed = run("inspect", pair(built) / "wide_ctx.onnx")
    assert code == 0 and "sharing saves" in printed and "npu-v2" in printed


def test_inspect_lists_what_to_ship(built: Path) -> None:
    folder = built / "dist" / "demo" / "default" / "single"
    code, printed = run("inspect", "--files", folder / "lone_ctx.onnx")
    expected = [(folder / name).as_posix() for name in ("lone_ctx.onnx", "lone.data")]
    assert (code, printed.splitlines()) == (0, expected)
    (folder / "lone.data").unlink()
    code, printed = run("inspect", "--files", folder / "lone_ctx.onnx")
    assert code == 7 and printed.splitlines()[: len(expected)] == expected
