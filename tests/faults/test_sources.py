"""Sources that change, shrink or vanish while they are built."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.stages import load, optimize
from tests.kit.command_line import epctx
from tests.kit.inline import Inline
from tests.kit.projects import Project, make


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    return made


def _edit_weights(folder: Path) -> None:
    with (folder / "a.data").open("r+b") as stream:
        stream.seek(64)
        stream.write(b"changed!")


def _exchange_weights(folder: Path) -> None:
    (folder / "new").write_bytes(bytes((folder / "a.data").stat().st_size))
    (folder / "new").replace(folder / "a.data")


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights edited": _edit_weights,
    "weights exchanged": _exchange_weights,
    "weights gone": lambda folder: (folder / "a.data").unlink(),
    "model gone": lambda folder: (folder / "a.onnx").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stage", [load, optimize], ids=["after load", "after optimize"])
def test_a_source_that_changes_meanwhile_is_no_build(
    project: Project, change: str, stage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = stage.run  # type: ignore[attr-defined]

    def changing(*arguments: object) -> object:
        found = original(*arguments)
        CHANGES[change](project.folder)
        return found

    monkeypatch.setattr(stage, "run", changing)
    ended = CliRunner().invoke(app, ["build", "m.yaml", "--jobs", "1"])
    said = ended.output + ended.stderr
    assert ended.exit_code == 4, said
    assert "a.data" in said or "a.onnx" in said
    assert "Traceback" not in said and "a bug in epctx" not in said
    assert not (project.folder / "dist" / "m").exists() and not project.lock.exists()


@pytest.mark.parametrize("year", [1971, 2100])
def test_a_source_from_another_time_is_noticed_when_it_changes(project: Project, year: int) -> None:
    """Clocks that jump: times prove nothing, content does."""
    when = time.mktime((year, 1, 1, 0, 0, 0, 0, 0, 0))
    for path in project.folder.iterdir():
        os.utime(path, (when, when))
    assert CliRunner().invoke(app, ["build", "m.yaml"]).exit_code == 0
    before = project.files()
    _edit_weights(project.folder)
    os.utime(project.folder / "a.data", (when, when))
    ended = CliRunner().invoke(app, ["build", "m.yaml"])
    assert ended.exit_code == 0, ended.output
    assert project.files() != before


@pytest.mark.needs("POSIX", "Windows does not tell when an inode was changed")
def test_a_file_in_the_inode_of_another_is_noticed(project: Project) -> None:
    """What a file system does with the inode of a removed file: size, times and number are right,
    the content is not."""
    weights = project.folder / "a.data"
    assert CliRunner().invoke(app, ["build", "m.yaml"]).exit_code == 0
    before, status = project.files(), weights.stat()
    _edit_weights(project.folder)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    now = weights.stat()
    assert (now.st_ino, now.st_size, now.st_mtime_ns) == (
        *(status.st_ino, status.st_size, status.st_mtime_ns),
    )
    ended = CliRunner().invoke(app, ["build", "m.yaml"])
    assert ended.exit_code == 0, ended.output
    assert project.files() != before


def test_a_clock_that_jumps_during_builds_hides_no_change(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at it is a year on or back: what is remembered of files goes by it."""
    jumps, year, real = itertools.cycle((0, 1, -1, 3, -2)), 365.25 * 86400, time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps) * year)
    before = (project.folder / "a.data").read_bytes()
    published = []
    for edited in (False, True, False):
        if edited:
            _edit_weights(project.folder)
        ended = CliRunner().invoke(app, ["build", "m.yaml"])
        assert ended.exit_code == 0, ended.output
        published.append(project.files())
    (project.folder / "a.data").write_bytes(before)
    ended = CliRunner().invoke(app, ["build", "m.yaml", "--locked"])
    assert ended.exit_code == 8, ended.output
    assert CliRunner().invoke(app, ["build", "m.yaml"]).exit_code == 0
    assert published[0] != published[1] == published[2]
    assert project.files() == published[0]
    assert CliRunner().invoke(app, ["report", "m.yaml"]).exit_code == 0


@pytest.mark.needs("POSIX", "a mapped file cannot be cut there")
def test_weights_cut_short_under_a_worker_are_its_end_and_no_more(tmp_path: Path) -> None:
    """What is mapped and gone is SIGBUS: in a worker, whose group fails."""
    made = make(tmp_path / "p", {"g": ["a"], "h": ["b"]})
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'epctx.worker' in sys.orig_argv:\n"
        "    from epctx.stages import partition\n"
        "    original = partition.run\n"
        "    def run(model, *rest):\n"
        "        if model.name == 'a':\n"
        f"            os.truncate({str(made.folder / 'a.data')!r}, 0)\n"
        "        return original(model, *rest)\n"
        "    partition.run = run\n",
        encoding="utf-8",
    )
    run = epctx("build", "m.yaml", "--keep-going", cwd=made.folder, PYTHONPATH=str(hook))
    assert run.returncode in (4, 6, 9), run.stderr
    assert "Traceback" not in run.stderr and "a bug in epctx" not in run.stderr
    assert run.returncode != 9 or "a source was cut short" in run.stderr
    assert sorted(path.name for path in made.published.iterdir()) == ["h"]
