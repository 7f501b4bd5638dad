"""Nothing changed, nothing done; anything changed, noticed; what is lost or corrupt, made again."""

from __future__ import annotations

import contextlib
import getpass
import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from epctx import api
from epctx.cache import Cache, locate
from epctx.cli.app import main
from epctx.commands import build as building
from epctx.engine import staleness
from epctx.engine.options import BuildOptions
from epctx.engine.staleness import Memo
from epctx.engine.state import GroupState
from epctx.errors import CompileError, EpctxError
from epctx.files import identity
from tests.kit import projects
from tests.kit.command_line import VARYING, epctx
from tests.kit.projects import Project, flip, ran, states, stats

pytestmark = pytest.mark.usefixtures("jobs_inline")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was built once, with its cache in `cache`."""
    folder = tmp_path_factory.mktemp("built")
    report = projects.built(folder)
    assert states(report) == {"one": "built", "two": "built"}
    assert ran(report) == [
        ("compile", "a"),
        ("compile", "all"),
        ("optimize", "a"),
        ("optimize", "b"),
        ("optimize", "c"),
        ("verify", "one"),
        ("verify", "two"),
    ]
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return projects.copied(built, tmp_path, monkeypatch)


def test_what_took_longest_is_built_first_and_what_nobody_knows_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = {"short@default": 1.0, "long@default": 9.0, "longer@default": 90.0}
    monkeypatch.setattr(Memo, "seconds", lambda self, group: took.get(group))
    made = projects.make(tmp_path, {"short": ["a"], "long": ["b"], "new": ["c"], "longer": ["d"]})
    made.build(jobs=1)
    begun = dict.fromkeys(event.group for event in made.events if event.state == "running")
    assert list(begun) == ["new@default", "longer@default", "long@default", "short@default"]


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all files were written some seconds ago, and not on a tmpfs, as /tmp may be."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 10)
    monkeypatch.setattr(identity, "tells", lambda path, text: True)


# --- nothing changed ---


def test_nothing_changed_nothing_done(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_worker(*args: object, **options: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("epctx.worker.pool.Worker", no_worker)
    before = stats(project.folder / "dist"), project.lock.read_bytes()
    for _ in range(2):
        report = project.build()
        assert states(report) == {"one": "up to date", "two": "up to date"}
        assert ran(report) == []
    assert (stats(project.folder / "dist"), project.lock.read_bytes()) == before
    assert project.events == []


def test_what_is_up_to_date_is_reported_in_full(project: Project) -> None:
    one, two = project.build().groups
    assert [file.name for file in two.files] == ["b_reference.bin", "b_ctx.onnx", "c_ctx.onnx"]
    assert [model.name for model in two.models] == ["b", "c"]
    assert two.models[0].partitions[0].provider == "ref"
    assert one.verify is not None and one.verify.folder == "one@default"
    assert {finding.policy for finding in one.verify.findings} == {
        "integrity", "conformance", "compatibility", "numbers",
    }  # fmt: skip
    assert one.verify.numbers and one.verify.models == ("a_ctx.onnx",)
    assert one.folder == "m/default/one"


def test_an_alias_is_no_change_and_is_told_as_it_is_now(project: Project) -> None:
    eps = project.section("execution_providers")
    eps["other"] = eps.pop("ref")
    project.section("defaults")["execution_providers"] = ["other"]
    report = project.build()
    assert ran(report) == []
    assert report.groups[0].models[0].partitions[0].provider == "other"


def test_that_a_size_is_a_guess_is_no_change_and_is_told(project: Project) -> None:
    model = project.section("models", "a")
    (given,) = onnx.load(project.folder / "a.onnx", load_external_data=False).graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    model["shapes"] = {given.name: shape}
    assert project.build().groups[0].guessed == {}
    model["guessed"] = [given.name]
    report = project.build()
    assert ran(report) == [] and set(states(report).values()) == {"up to date"}
    assert report.groups[0].guessed == {"a": f"{given.name}: {shape}"}


def test_no_weight_is_read_once_it_is_remembered(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(monkeypatch)
    project.build()
    read: list[object] = []
    monkeypatch.setattr("epctx.files.digest.of_stream", read.append)
    assert states(project.build()) == {"one": "up to date", "two": "up to date"}
    assert read == []


# --- something changed ---


def byte_of_a_weight(project: Project) -> None:
    flip(project.folder / "b.data")


def tolerance(project: Project) -> None:
    project.section("defaults", "verify", "tolerance")["max_abs"] = 0.5


def inputs(project: Project) -> None:
    project.section("defaults", "verify", "inputs")["seed"] = 3


def option(project: Project) -> None:
    options = project.section("execution_providers", "ref", "options")
    options["hardware_architecture"] = "other"


def order(project: Project) -> None:
    project.section("model_groups", "two")["sharing_groups"] = {"all": ["c", "b"]}


def prefix(project: Project) -> None:
    project.section("model_groups", "one")["node_name_prefix"] = "p_"


def timeout(project: Project) -> None:
    project.section("defaults")["timeout"] = "5m"


ONE, TWO = ("verify", "one"), ("verify", "two")
CHANGES: dict[Callable[[Project], None], list[tuple[str, str]]] = {
    byte_of_a_weight: [("compile", "all"), ("optimize", "b"), TWO],
    tolerance: [ONE, TWO],
    inputs: [ONE, TWO],
    option: [("compile", "a"), ("compile", "all"), ONE, TWO],
    order: [("compile", "all"), TWO],
    prefix: [("compile", "a"), ONE],
    timeout: [],
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_change_reaches_is_done_and_nothing_else(
    project: Project, change: Callable[[Project], None]
) -> None:
    change(project)
    assert ran(project.build()) == CHANGES[change]
    again = project.build()
    assert ran(again) == []
    assert states(again) == {"one": "up to date", "two": "up to date"}


def test_it_is_known_how_long_a_group_took_when_it_was_compiled(project: Project) -> None:
    expected: list[Mapping[str, float | None]] = []

    def build() -> Mapping[str, float | None]:
        options = BuildOptions(out=project.folder / "dist", expect=expected.append)
        project.write()
        building.run(project.manifest, options, listener=lambda event: None)
        return expected[-1]

    prefix(project)
    assert build() == {"one@default": None}
    project.section("model_groups", "one")["node_name_prefix"] = "q_"
    (took,) = build().values()
    assert took is not None and took > 0
    shutil.rmtree(project.folder / "dist")
    known = build()
    shutil.rmtree(project.folder / "dist")
    assert build() == known and set(known) == {"one@default", "two@default"}
    assert known["two@default"] is None, "what the cache had took no time that tells anything"


def doc_string(model: onnx.ModelProto) -> None:
    model.doc_string = "edited"
    model.graph.doc_string = "edited"
    for node in model.graph.node:
        node.doc_string = "edited"


def metadata(model: onnx.ModelProto) -> None:
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "exporter", "edited"


def unused_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unused"))


def initializer_order(model: onnx.ModelProto) -> None:
    reordered = list(reversed(model.graph.initializer))
    del model.graph.initializer[:]
    model.graph.initializer.extend(reordered)


def producer(model: onnx.ModelProto) -> None:
    model.producer_name, model.producer_version = "edited", "2"


def opset_import(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


@pytest.mark.parametrize(
    "change",
    [doc_string, metadata, unused_initializer, initializer_order, producer, opset_import],
    ids=lambda change: change.__name__,
)
def test_an_edit_that_optimizes_away_compiles_nothing(
    project: Project, change: Callable[[onnx.ModelProto], None]
) -> None:
    before = project.files()
    project.edit("a", change)
    # Verified it is: another source gave the same model.
    assert ran(project.build()) == [("optimize", "a"), ONE]
    assert project.files() == before


def test_reversed_fields_of_the_protobuf_compile_nothing(project: Project) -> None:
    path = project.folder / "a.onnx"
    model = onnx.load(path, load_external_data=False)
    fields = [
        onnx.ModelProto(**{field.name: value}) if not field.is_repeated else None
        for field, value in model.ListFields()
    ]
    parts = [part.SerializeToString() for part in fields if part is not None]
    opsets = onnx.ModelProto(opset_import=model.opset_import).SerializeToString()
    reordered = opsets + b"".join(reversed(parts))
    assert onnx.ModelProto.FromString(reordered) == model
    assert reordered != path.read_bytes()
    path.write_bytes(reordered)
    assert ran(project.build()) == [("optimize", "a"), ONE]


# --- what is published ---


def edited(path: Path) -> None:
    flip(path / "b_reference.bin", 5000)


def missing(path: Path) -> None:
    (path / "c_ctx.onnx").unlink()


def left_over(path: Path) -> None:
    (path / "more.bin").write_bytes(b"more")


def without_sums(path: Path) -> None:
    (path / "SHA256SUMS").unlink()


def gone(path: Path) -> None:
    shutil.rmtree(path)


@pytest.mark.parametrize(
    "damage", [edited, missing, left_over, without_sums, gone], ids=lambda damage: damage.__name__
)
def test_a_damaged_output_is_restored_without_a_compile(
    project: Project, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epctx.worker.pool.Worker", None)
    before = project.files()
    project.build()
    damage(project.published / "two")
    report = project.build()
    assert states(report) == {"one": "up to date", "two": "built"}
    assert ran(report) == []
    assert project.files() == before


def test_outputs_are_copies_of_their_own(project: Project) -> None:
    shutil.rmtree(project.published)
    project.build()
    flip(project.published / "one" / "a_ctx.onnx")
    assert all(path.stat().st_nlink == 1 for path in project.published.rglob("*.*"))
    cache = Cache(locate(), print)
    assert all(cache.objects.check(content) for content, _ in cache.objects.all())


# --- a corrupt cache ---


def restored(project: Project) -> list[str]:
    """Build after the outputs and the memory of their digests are gone; what was told."""
    before = project.files()
    shutil.rmtree(project.published)
    assert states(project.build()) == {"one": "built", "two": "built"}
    assert project.files() == before
    told = project.notices()
    project.build()
    assert project.notices() == []
    return told


@pytest.mark.parametrize("kind", ["objects", "actions"])
def test_a_flipped_byte_in_any_file_of_the_cache_is_found_repaired_and_told(
    project: Project, kind: str
) -> None:
    files = sorted((locate().root / kind).rglob("*/*"))
    for path in files:
        flip(path)
    told = restored(project)
    assert told
    assert all(f"{kind}/" in text and "it will be made again" in text for text in told)


@pytest.mark.parametrize("kind", ["digests", "groups"])
def test_a_flipped_byte_in_what_is_remembered(
    project: Project, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    later(monkeypatch)
    project.build()
    for path in (locate().root / kind).rglob("*/*"):
        flip(path, 10)
    if kind == "digests":  # which nobody asks for as long as nothing has changed
        shutil.rmtree(locate().root / "groups")
    report = project.build()
    assert states(report) == {"one": "up to date", "two": "up to date"}
    assert project.notices()
    assert all(f"{kind}/" in text for text in project.notices())


def test_a_flipped_byte_in_what_plan_explains_by(project: Project) -> None:
    for path in (locate().root / "groups").rglob("*/*"):
        flip(path, 10)
    prefix(project)
    project.write()
    planned = api.plan(project.manifest, out=project.folder / "dist")
    assert [group.state for group in planned.groups] == ["runs", "up to date"]
    assert states(project.build()) == {"one": "built", "two": "up to date"}
    flip(project.folder / "a.data")
    (action, *_) = api.plan(project.manifest, out=project.folder / "dist").groups[0].actions
    assert [change.field for change in action.changes] == ["data[0]"], "it explains again"


def test_a_lost_object_of_an_optimized_model_is_made_again(project: Project) -> None:
    """The compile is to be run, the optimized model was, and is lost."""
    cache = Cache(locate(), print)
    for content, _ in cache.objects.all():
        cache.objects.path(content).unlink()
    prefix(project)
    assert ran(project.build()) == [("compile", "a"), ("optimize", "a"), ONE]


def test_garbage_instead_of_a_cache(project: Project) -> None:
    shutil.rmtree(locate().root)
    locate().root.mkdir()
    (locate().root / "users.db").write_bytes(b"garbage")
    assert states(project.build()) == {"one": "built", "two": "built"}


# --- with less of a cache ---


def test_without_a_cache_everything_runs_and_nothing_is_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "none"))
    before = project.files()
    lock = project.lock.read_bytes()
    assert len(ran(project.build(cache=False))) == 7
    assert not (tmp_path / "none").exists()
    assert project.files() == before
    assert project.lock.read_bytes() == lock


def test_a_read_only_cache_is_used_and_not_changed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_CACHE_READONLY", "1")
    before = stats(locate().folder)
    assert states(project.build()) == {"one": "up to date", "two": "up to date"}
    prefix(project)
    assert ran(project.build()) == [("compile", "a"), ONE]
    assert ran(project.build()) == [("compile", "a"), ONE]
    assert stats(locate().folder) == before


def test_another_checkout_finds_what_the_first_has_made(project: Project, tmp_path: Path) -> None:
    other = Project(folder=tmp_path / "a deeper" / "place", document=project.document)
    shutil.copytree(project.folder, other.folder)
    shutil.rmtree(other.folder / "dist")
    assert ran(other.build()) == []
    assert other.files() == project.files()
    assert other.lock.read_bytes() == project.lock.read_bytes()


# --- failures ---


def test_after_a_failure_what_was_done_is_not_done_again(project: Project) -> None:
    project.section("model_groups", "one")["partition"] = {"require_coverage": 1.0}
    options = project.section("execution_providers", "ref", "options")
    options["exclude_ops"] = ["Tanh"]
    with pytest.raises(CompileError):
        project.build(jobs=1, keep_going=True)
    del project.section("model_groups", "one")["partition"]
    assert ran(project.build()) == [("compile", "a"), ONE]


def test_a_failed_verification_is_not_remembered(project: Project) -> None:
    project.section("defaults", "verify", "tolerance")["max_abs"] = 0.5
    project.build()
    project.section("defaults", "verify")["inputs"] = {"files": ["inputs/*.npz"]}
    (project.folder / "inputs").mkdir()
    np.savez(project.folder / "inputs" / "bad.npz", other=np.zeros((1, 32), np.float32))
    for _ in range(2):
        with pytest.raises(EpctxError):
            project.build()
    np.savez(project.folder / "inputs" / "bad.npz", x=np.zeros((1, 32), np.float32))
    assert ran(project.build()) == [ONE, TWO]


def test_a_source_that_changes_while_it_is_built_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came of it must not stay in the cache under the key of what it was."""
    from epctx.engine.actions.compile import Compiling

    fetched = Compiling._fetched
    prefix(project)

    def then_edited(self: Compiling, *args: object) -> object:
        found = fetched(self, *args)  # type: ignore[arg-type]
        flip(project.folder / "a.data")
        return found

    monkeypatch.setattr(Compiling, "_fetched", then_edited)
    with pytest.raises(EpctxError, match="changed"):
        project.build(only=["one"])


# --- the lock ---


def test_the_lock_is_written_by_a_whole_successful_build_only(project: Project) -> None:
    before = project.lock.read_bytes()
    prefix(project)
    project.build(only=["one"])
    assert project.lock.read_bytes() == before
    project.section("model_groups", "two")["partition"] = {"max_partitions": 1, "min_nodes": 99}
    with pytest.raises(EpctxError):
        project.build(keep_going=True)
    assert project.lock.read_bytes() == before
    del project.section("model_groups", "two")["partition"]
    project.build()
    assert project.lock.read_bytes() != before


def test_a_lost_lock_is_written_again_without_a_build(project: Project) -> None:
    before = project.lock.read_bytes()
    project.lock.unlink()
    assert ran(project.build()) == []
    assert project.lock.read_bytes() == before


def test_the_lock_names_no_place_and_no_host(project: Project) -> None:
    text = project.lock.read_text(encoding="utf-8")
    for word in (str(project.folder), socket.gethostname(), "/tmp", getpass.getuser() + "/"):
        assert word not in text
    assert "source: a.onnx" in text


def test_a_digest_is_remembered_of_what_was_built(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as it has settled: the next build reads nothing of it."""
    shutil.rmtree(project.published)
    project.build()
    path = project.published / "two" / "b_reference.bin"
    later(monkeypatch)
    project.build()
    cache = Cache(locate(), print)
    assert cache.digests.known(path, identity.of_path(path)) is not None


# --- what is remembered of groups ---


@pytest.fixture
def command(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, bool]]:
    """Runs `epctx build`: what it printed, and whether it looked at a group."""
    later(monkeypatch)
    monkeypatch.chdir(project.folder)
    look, looked = staleness.look, list[bool]()

    def noted(*arguments: Any) -> GroupState:
        looked.append(True)
        return look(*arguments)

    monkeypatch.setattr(staleness, "look", noted)

    def run(*arguments: str) -> tuple[str, bool]:
        looked.clear()
        monkeypatch.setattr(sys, "argv", ["epctx", "build", "m.yaml", *arguments])
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr().out, bool(looked)

    project.write()
    return run


SAID = "nothing to do, 2 groups are up to date\ndist/m/  report: dist/m.build.json\n"


def test_the_second_time_no_group_is_looked_at(command: Callable[..., tuple[str, bool]]) -> None:
    assert command() == (SAID, True)
    assert command() == (SAID, False)
    assert command("-q") == ("", False)


def test_the_report_as_json_is_the_same(command: Callable[..., tuple[str, bool]]) -> None:
    (first, looked), (second, again) = command("--format=json"), command("--format=json")
    assert (looked, again) == (True, False)
    times = dict.fromkeys(("started", "seconds"))  # of this run, not of the one before
    assert json.loads(first) | times == json.loads(second) | times


def test_what_is_locked_is_looked_at_each_time(command: Callable[..., tuple[str, bool]]) -> None:
    assert command("--locked")[1]
    assert command("--locked")[1]


def edited_manifest(project: Project) -> None:
    tolerance(project)
    project.write()


def edited_output(project: Project) -> None:
    edited(project.published / "two")


def output_too_many(project: Project) -> None:
    left_over(project.published / "two")


def group_too_many(project: Project) -> None:
    shutil.copytree(project.published / "one", project.published / "three")


def target_too_many(project: Project) -> None:
    (project.folder / "dist" / "m" / "other").mkdir()


def lost_lock(project: Project) -> None:
    project.lock.unlink()


def lost_report(project: Project) -> None:
    (project.folder / "dist" / "m.build.json").unlink()


def killed_build(project: Project) -> None:
    (project.folder / "dist" / "m.staging").mkdir()


@pytest.mark.parametrize(
    ("change", "of_a_group"),
    [
        (byte_of_a_weight, True),
        (edited_manifest, True),
        (edited_output, True),
        (output_too_many, True),
        (group_too_many, False),
        (target_too_many, False),
        (lost_lock, False),
        (lost_report, False),
        (killed_build, False),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_whatever_changes_is_noticed(
    project: Project,
    command: Callable[..., tuple[str, bool]],
    change: Callable[[Project], None],
    of_a_group: bool,
) -> None:
    command()
    assert command() == (SAID, False)
    before = project.files(), project.lock.read_bytes()
    change(project)
    assert command()[1] is of_a_group
    assert sorted(path.name for path in project.published.iterdir()) == ["one", "two"]
    if not of_a_group:
        assert (project.files(), project.lock.read_bytes()) == before
        assert (project.folder / "dist" / "m.build.json").is_file()
    command()
    assert command() == (SAID, False)


def test_a_file_that_an_option_names_is_an_input(tmp_path: Path) -> None:
    """Of an EP without a schema, too: nobody says which of its options are paths."""
    made = projects.make(tmp_path, {"g": ["a"]}, verify={"numbers": "off"})
    packages = shutil.copytree(VARYING, tmp_path / "packages")
    shutil.rmtree(packages / "epctx_varying" / "schemas")
    (tmp_path / "nothing").write_text("a word, as it is written", encoding="utf-8")
    (tmp_path / "cfg.json").write_text("{}", encoding="utf-8")
    made.document["execution_providers"] = {
        "ref": {
            "provider": "VaryingExecutionProvider",
            "options": {"depends": "nothing", "folder": "./cfg.json"},
            "allow_unknown_options": True,
        }
    }
    made.write()

    def run(*arguments: str) -> str:
        ran = epctx(*arguments, cwd=tmp_path, PYTHONPATH=str(packages))
        return f"{ran.returncode} {ran.stdout}{ran.stderr}"

    assert run("build", "m.yaml").startswith("0 ")
    assert "nothing to do" in run("build", "m.yaml")
    lock = made.lock.read_text(encoding="utf-8")
    assert "cfg.json" not in lock and "depends: nothing" in lock
    (tmp_path / "cfg.json").write_text('{"threads": 1}', encoding="utf-8")
    assert "nothing to do" not in run("plan", "m.yaml")
    assert run("build", "m.yaml", "--locked").startswith("8 ")
    assert "nothing to do" not in run("build", "m.yaml")


def test_what_a_limit_decided_is_decided_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = projects.make(tmp_path, {"g": ["a"]})
    with monkeypatch.context() as patch:
        patch.setenv("EPCTX_LIMIT_INPUT_BYTES", "1")
        found = made.build().groups[0].verify
    assert found is not None and any("EPCTX_LIMIT_" in each.message for each in found.findings)
    found = made.build().groups[0].verify
    assert found is not None and found.numbers
    assert not any("EPCTX_LIMIT_" in each.message for each in found.findings)
