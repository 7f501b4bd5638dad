"""The command line as a user, a script and a log see it: processes, streams, exit codes.

Where a process of its own would show nothing more, commands are carried out in this one.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from epctx import api
from epctx._version import __version__
from epctx.errors import UsageError
from tests.kit import command_line
from tests.kit.building import mlp
from tests.kit.command_line import FAULTY, PROGRAM, environment

HEAD = "schema_version: 1\nname: m\nmodels: {m: {path: m.onnx}}\n"
REFERENCE = "execution_providers: {ep: {provider: ReferenceExecutionProvider}}\n"
GROUPS = "model_groups: {g: {models: [m], execution_providers: [ep]}}\n"
HEADINGS = "group state models files size on EPs EPContext checks max error"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


def epctx(*arguments: str, folder: Path, **variables: str) -> Ran:
    ran = command_line.epctx(*arguments, cwd=folder, **{"PYTHONPATH": str(FAULTY), **variables})
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def inside(*arguments: str, folder: Path) -> Ran:
    """The same, in this process."""
    ran = command_line.inside(*arguments, cwd=folder)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a manifest, what it builds, and a damaged copy of that."""
    folder = tmp_path_factory.mktemp("project")
    onnx.save(mlp(), folder / "m.onnx")
    (folder / "m.yaml").write_text(HEAD + REFERENCE + GROUPS, encoding="utf-8")
    assert epctx("build", "m.yaml", folder=folder).code == 0
    group = folder / "damaged"
    shutil.copytree(folder / "dist" / "m" / "default" / "g", group)
    binary = group / "m_reference.bin"
    binary.write_bytes(binary.read_bytes()[:-1] + b"x")
    return folder


@pytest.fixture
def here(project: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    return folder


def faulty(fault: str, **settings: str) -> str:
    """A manifest for the EP that fails in a way of its own."""
    rest = "".join(f", {key}: {value}" for key, value in settings.items())
    return (
        HEAD + f"execution_providers: {{ep: {{provider: FaultyExecutionProvider, "
        f"options: {{fault: {fault}}}}}}}\n"
        f"model_groups: {{g: {{models: [m], execution_providers: [ep]{rest}}}}}\n"
    )


def reference(options: str) -> str:
    return HEAD + REFERENCE.replace("Provider}}", f"Provider, options: {{{options}}}}}}}") + GROUPS


def nothing(folder: Path) -> None:
    """The folder as it is."""


def write(name: str, text: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        write_other(folder / name, text)

    return prepare


def write_other(path: Path, text: str) -> None:
    """A manifest beside `m.yaml` has another name, or it would replace what that one built."""
    path.write_text(text.replace("name: m\n", f"name: {path.stem}\n"), encoding="utf-8")


TENSORRT = HEAD + REFERENCE.replace("Reference", "Tensorrt") + GROUPS
FAILURES: dict[str, tuple[int, str, str, Callable[[Path], None]]] = {
    "an unknown option": (2, "build m.yaml --key-going", "--keep-going", nothing),
    "an unknown command": (2, "bild m.yaml", 'did you mean "build"?', nothing),
    "no argument": (2, "inspect", "missing argument 'FILE'", nothing),
    "no manifest anywhere": (2, "build", "no manifest was named", nothing),
    "a number that is none": (2, "build m.yaml -j many", "valid int", nothing),
    "a group that there is not": (2, "build m.yaml --only gg", 'did you mean "g"?', nothing),
    "a file that is there": (2, "init m.onnx --out m.yaml", "--force", nothing),
    "nothing to inspect": (2, "inspect gone.onnx", "gone.onnx: does not exist", nothing),
    "a dimension that there is not": (2, "run m.onnx --dimension x=1", "no input has a", nothing),
    "an unknown schema": (2, "schema manifst", 'did you mean "manifest"?', nothing),
    "no manifest": (2, "build gone.yaml", "epctx init", nothing),
    "a model as manifest": (3, "build m.onnx", "epctx init m.onnx", nothing),
    "a misspelt key": (
        3,
        "build x.yaml",
        'x.yaml:3:1: model: unknown key\n  -> did you mean "models"?',
        write("x.yaml", HEAD.replace("models", "model") + REFERENCE + GROUPS),
    ),
    "a misspelt EP option": (
        3,
        "validate x.yaml",
        'did you mean "source"?',
        write("x.yaml", reference("sorce: a")),
    ),
    "an unknown EP": (3, "init m.onnx -q --out n.yaml --provider QNN", "QNNExecution", nothing),
    "no model": (
        4,
        "build x.yaml",
        "n.onnx: does not exist",
        write("x.yaml", (HEAD + REFERENCE + GROUPS).replace("m.onnx", "n.onnx")),
    ),
    "no ONNX model": (4, "init x.onnx --out n.yaml", "is text", write("x.onnx", "hello")),
    "an EP that is not installed": (
        5,
        "build x.yaml",
        "has no TensorrtExecutionProvider",
        write("x.yaml", TENSORRT),
    ),
    "nothing compiled": (
        6,
        "build x.yaml",
        "nothing compiled",
        write("x.yaml", reference("ops: [Conv]")),
    ),
    "a compiler that crashes": (
        6,
        "build x.yaml",
        "x.logs",
        write("x.yaml", faulty("abort")),
    ),
    "a damaged binary, verified": (7, "verify damaged", "was changed", nothing),
    "a damaged binary, run": (7, "run damaged/m_ctx.onnx", "INVALID_GRAPH", nothing),
    "a missing binary, to be shipped": (
        7,
        "inspect --files damaged/m_ctx.onnx",
        "cannot be shipped",
        lambda folder: (folder / "damaged" / "m_reference.bin").unlink(),
    ),
    "no lock": (
        8,
        "build m.yaml --locked",
        "there is no lock",
        lambda folder: (folder / "m.lock.yaml").unlink(),
    ),
    "outputs where a file is": (9, "build m.yaml --out m.onnx/a", "cannot be written", nothing),
    "a compiler that hangs": (
        10,
        "build x.yaml",
        "no result within 2 s",
        write("x.yaml", faulty("hang", timeout="2s")),
    ),
}
"""Exit code, command, what is said, what goes before."""
OF_PROCESSES = (
    *("an unknown option", "a misspelt key", "no model", "an EP that is not installed"),
    *("a compiler that crashes", "a damaged binary, run", "no lock"),
    *("outputs where a file is", "a compiler that hangs"),
)
"""One for each exit code is carried out by a process."""


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_has_its_exit_code_and_says_what_to_do(name: str, here: Path) -> None:
    code, line, words, prepare = FAILURES[name]
    prepare(here)
    run = epctx if name in OF_PROCESSES else inside
    ran = run(*line.split(), folder=here)
    assert ran.code == code, ran.err
    told = ran.err + ran.out
    # A usage error is Typer's, in a box that wraps its lines.
    unboxed = " ".join(told.replace("│", " ").split())
    assert words in told or words in unboxed
    assert "Traceback" not in told
    assert "  -> " in told or "--help" in told or "-h' for help" in told


@pytest.mark.parametrize(
    "line", [line for code, line, *_ in FAILURES.values() if code == 2 and "schema" not in line]
)
def test_wrong_arguments_are_json_where_that_is_wanted(line: str, here: Path) -> None:
    for form in (["--format", "json"], ["--format=json"]):
        ran = inside(*line.split(), *form, folder=here)
        error = json.loads(ran.out)["error"]
        assert (ran.code, error["exit_code"]) == (2, 2)
        assert error["what"] and error["remedy"]
        assert f"{error['what']}" in ran.err


def test_an_interrupt_during_the_imports_is_130(tmp_path: Path) -> None:
    """A fake module in the place of the first large import: nobody can press Ctrl-C in time."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    ran = command_line.epctx("doctor", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert ran.returncode == 130
    assert ran.stderr == "error[E1300]: interrupted\n  -> run the command again; nothing is lost\n"


def test_every_exit_code_but_those_of_bugs_and_interrupts_is_here() -> None:
    assert {code for code, *_ in FAILURES.values()} == set(range(2, 11))
    assert sorted(FAILURES[name][0] for name in OF_PROCESSES) == list(range(2, 11))


def test_a_bug_is_1(here: Path) -> None:
    code = (
        "import sys, epctx.commands.inspect.command as v\n"
        "def fail(*args): raise KeyError('surprise')\n"
        "v.inspect = fail\n"
        "from epctx.cli.app import main\n"
        "sys.argv = ['epctx', 'inspect', 'm.onnx']; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    log = Path(ran.stderr.strip().rpartition("log file ")[2])
    assert "KeyError: 'surprise'" in log.read_text(encoding="utf-8")
    log.unlink()


@pytest.mark.needs("POSIX", "a console group is needed to send CTRL_C there")
def test_an_interrupt_is_130(here: Path) -> None:
    write_other(here / "x.yaml", faulty("hang"))
    process = subprocess.Popen(
        [*PROGRAM, "build", "x.yaml", "-v"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(FAULTY)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "compile" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.endswith(
        "error[E1300]: interrupted, nothing was published; the cache keeps what is finished for "
        "the next build\n  -> run the command again\n"
    )


@pytest.mark.needs("POSIX", "has no FIFOs")
def test_a_pipe_as_a_manifest_is_waited_for_until_ctrl_c(here: Path) -> None:
    os.mkfifo(here / "pipe.yaml")
    command = [*PROGRAM, "build", "pipe.yaml"]
    process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = process.stderr.readline()
    assert told == "reading pipe.yaml, a pipe, to its end; Ctrl-C ends it\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err.splitlines()[0]) == (130, "error[E1300]: interrupted")


@pytest.mark.needs("/proc", "names pipes in /dev/fd")
def test_a_manifest_of_no_folder_is_read_and_is_built_nowhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `epctx build <(…)`: its paths are relative to the current folder."""
    monkeypatch.chdir(here)

    def call(function: Callable[[str], object]) -> object:
        reader, writer = os.pipe()
        os.write(writer, (here / "m.yaml").read_bytes())
        os.close(writer)
        with contextlib.closing(os.fdopen(reader)):
            return function(f"/dev/fd/{reader}")

    assert "violations=()" in str(call(api.validate))
    with pytest.raises(UsageError, match="no lock can be written beside it"):
        call(api.build)


JSON = {
    "build m.yaml --no-cache": 0,
    "plan m.yaml": 0,
    "verify dist": 0,
    "verify damaged": 7,
    "inspect dist/m/default/g/m_ctx.onnx": 0,
    "inspect --files dist/m/default/g/m_ctx.onnx": 0,
    "run dist/m/default/g/m_ctx.onnx": 0,
    "run damaged/m_ctx.onnx": 7,
    "validate m.yaml x.yaml": 4,
    "build gone.yaml": 2,
    "build x.yaml": 4,
    "init m.onnx --out n.yaml": 0,
    "schema": 0,
    "schema manifest": 0,
    "cache info": 0,
}
WITH_NATIVE_NOISE = (
    *("build m.yaml --no-cache", "verify damaged", "run damaged/m_ctx.onnx"),
    *("inspect dist/m/default/g/m_ctx.onnx", "build gone.yaml"),
)
"""Beside which libraries may write to the streams of a process."""


@pytest.mark.parametrize("line", JSON)
def test_json_is_alone_on_stdout(line: str, here: Path) -> None:
    text = (HEAD + REFERENCE + GROUPS).replace("m.onnx", "gone.onnx")
    write_other(here / "x.yaml", text)
    run = epctx if line in WITH_NATIVE_NOISE else inside
    ran = run(*line.split(), "--format", "json", folder=here)
    assert ran.code == JSON[line], ran.err
    json.loads(ran.out)
    assert "{" not in ran.err


def test_a_failed_build_in_json_is_its_report(here: Path) -> None:
    write_other(here / "x.yaml", reference("ops: [Conv]"))
    ran = epctx("build", "x.yaml", "--format", "json", folder=here)
    (group,) = json.loads(ran.out)["groups"]
    assert group["state"] == "failed" and group["failure"]["exit_code"] == ran.code == 6
    saved = (here / "dist" / "x.build.json").read_text(encoding="utf-8")
    assert json.loads(saved) == json.loads(ran.out)


def test_a_log_has_plain_whole_lines(here: Path) -> None:
    build = ("build", "m.yaml", "--no-cache", "--out", "elsewhere")
    short, long = (epctx(*build, *flags, folder=here) for flags in ([], ["-v"]))
    assert short.code == 0 and short.err == "g@default: verified on generated inputs\n"
    assert {"g@default: m: compile", "g@default: built"} <= set(long.err.splitlines())
    lines = (short.out + long.err).splitlines()
    assert not [line for line in lines if "\x1b" in line or "\r" in line or line != line.rstrip()]
    assert " ".join(lines[0].split()) == HEADINGS


@pytest.mark.parametrize(
    ("flags", "variables"), [([], {"FORCE_COLOR": "1"}), (["--color", "always"], {})]
)
def test_a_coloured_log_has_no_cursor(
    flags: list[str], variables: dict[str, str], here: Path
) -> None:
    build = ("build", "m.yaml", "--no-cache", "--out", "elsewhere", *flags)
    ran = epctx(*build, folder=here, **variables)
    assert "\x1b[32mg@default: verified on generated inputs\x1b[0m\n" in ran.err
    assert {found[-1] for found in ANSI.findall(ran.out + ran.err)} == {"m"}


@pytest.mark.parametrize(
    ("settings", "flags", "reason"),
    [
        ("", ["--no-verify"], "--no-verify"),
        ("{numbers: off}", [], "the manifest says `numbers: off`"),
        ("{budget: 0}", [], "budget (0 s are used up)"),
    ],
)
def test_numbers_that_were_not_run_are_told_each_time(
    settings: str, flags: list[str], reason: str, here: Path
) -> None:
    verify = f", verify: {settings}" if settings else ""
    groups = GROUPS.replace("[ep]", f"[ep]{verify}")
    write_other(here / "x.yaml", HEAD + REFERENCE + groups)
    first, second = (inside("build", "x.yaml", *flags, folder=here) for _ in range(2))
    assert first.err == "g@default: built, numbers not run\n"
    assert "verified" not in first.out and reason in first.out
    told = [line for line in second.out.splitlines() if line.startswith("not checked: ")]
    assert second.out.startswith("nothing to do") and len(told) == 1 and told[0].endswith(reason)
    report = json.loads((here / "dist" / "x.build.json").read_text(encoding="utf-8"))
    (group,) = report["groups"]
    assert group["state"] == "built"
    unchecked = [f for f in group["verify"]["findings"] if f["outcome"] == "not checkable"]
    assert [f["message"].removeprefix("not checked: ") for f in unchecked] == [reason]
    verified = inside("verify", "dist/x", folder=here)
    assert verified.out.splitlines()[-1].endswith(", 1 not checkable, numbers not run")


def test_quiet_says_nothing_but_errors(here: Path) -> None:
    assert epctx("build", "m.yaml", "--no-cache", "-q", folder=here) == Ran(0, "", "")
    assert inside("verify", "dist", "-q", folder=here) == Ran(0, "", "")
    assert inside("build", "gone.yaml", "-q", folder=here).err.startswith(
        "error[E0202]: gone.yaml: "
    )


def test_python_may_drop_docstrings_and_refuse_warnings(here: Path) -> None:
    strict = {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error"}
    for line in ("build m.yaml --no-cache -q", "build --help", "env"):
        ran = command_line.epctx(*line.split(), cwd=here, **strict)
        assert (ran.returncode, ran.stderr) == (0, "")


def test_verbose_says_more(here: Path) -> None:
    short, long = (
        inside("build", "m.yaml", "--no-cache", *flags, folder=here).out for flags in ([], ["-v"])
    )
    assert "  ep: 10 nodes in one partition" in long.splitlines()
    assert (
        "output 'y' (seed 0, set 0, generated, files, against the source model): abs " in long
        and "output 'y'" not in short
    )


def options_of(shown: str) -> Iterator[str]:
    for line in shown.splitlines():
        found = re.match(r"│ (?:\*)?\s*(--[a-z-]+)", line)
        if found:
            yield found[1]


@pytest.mark.parametrize(
    "command",
    ["init", "validate", "plan", "build", "verify", "reproduce", "inspect", "run", "doctor"]
    + ["diff", "schema"]
    + [f"cache {name}" for name in ("info", "gc", "verify")],
)
def test_help_says_what_each_option_is_for(command: str, tmp_path: Path) -> None:
    ran = inside(*command.split(), "--help", folder=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert f"Usage: epctx {command} [OPTIONS]" in ran.out
    assert {"--format", "--verbose", "--quiet", "--color", "--help"} <= set(options_of(ran.out))
    assert max(map(len, ran.out.splitlines())) <= 80
    bare = [line for line in ran.out.splitlines() if re.fullmatch(r"│ (\*)? *--\S+[^a-z]*│", line)]
    assert not bare, "an option without a word on what it is for"


def test_without_a_command_help_is_shown(tmp_path: Path) -> None:
    ran = epctx(folder=tmp_path)
    assert ran.code == 2 and "build" in ran.out + ran.err
    assert inside("--version", folder=tmp_path).out.startswith("epctx ")


def in_terminal(
    *arguments: str, folder: Path, width: int = 80, typed: str = "", **variables: str
) -> str:
    """What a terminal of this width shows, in which this is typed."""
    import fcntl
    import pty
    import struct
    import termios

    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=environment(**{"TERM": "xterm-256color", **variables}),
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    os.write(main, typed.encode())
    shown = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert process.wait(timeout=300) == 0
    os.close(main)
    return shown.decode()


@pytest.mark.needs("POSIX", "has no pseudo-terminals of this kind")
def test_a_terminal_of_80_columns_shows_progress_and_a_table_that_fits(here: Path) -> None:
    shown = in_terminal("build", "m.yaml", "--no-cache", folder=here)
    assert re.search(r"g@default m: \w+ \S*0 s|g@default g: verify \S*0 s", shown)
    plain = ANSI.sub("", shown.rpartition("\x1b[?25h")[2]).replace("\r", "")
    table = plain.strip().splitlines()
    assert max(map(len, table)) <= 80
    assert " ".join(table[0].split()) == HEADINGS
    assert table[2].split()[:4] == ["g@default", "built", "1", "2"]


@pytest.mark.needs("POSIX", "has no pseudo-terminals of this kind")
def test_colour_is_for_terminals_and_can_be_refused(here: Path) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
    validate = ("validate", "m.yaml")
    assert coloured.search(in_terminal(*validate, folder=here))
    assert not coloured.search(in_terminal(*validate, folder=here, NO_COLOR="1"))
    assert not coloured.search(in_terminal(*validate, "--color", "never", folder=here))
    assert coloured.search(epctx(*validate, "--color", "always", folder=here).out)


@pytest.mark.needs("POSIX", "has no pseudo-terminals of this kind")
@pytest.mark.needs("module onnxruntime_qnn")
def test_init_asks_in_a_terminal_which_ep_and_which_chip(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QNN compiles on each host that it is installed on; OpenVINO comes first where it has one."""
    monkeypatch.setenv("EPCTX_HIDE_DEVICES", "OpenVINOExecutionProvider")
    (model,) = here.glob("*.onnx")
    for typed, option in (("1\nsm8650\n", "soc_model: sm8650"), ("0\n1\n\n", "# options: {}")):
        shown = in_terminal("init", model.name, "--force", folder=here, typed=typed)
        assert "1  QNNExecutionProvider  ready" in ANSI.sub("", shown)
        assert "without soc_model the context is for any chip" in shown.replace("\r\n", " ")
        text = (here / "epctx.yaml").read_text(encoding="utf-8")
        assert "provider: QNNExecutionProvider" in text and option in text
    shown = in_terminal("init", model.name, "--force", "--yes", folder=here)
    assert "for QNNExecutionProvider; --provider names another" in shown
    assert "QNNExecutionProvider" in (here / "epctx.yaml").read_text(encoding="utf-8")


def test_a_dry_run_is_the_plan_and_options_of_all_commands_may_come_first(here: Path) -> None:
    (here / "m.yaml").rename(here / "epctx.yaml")
    shutil.rmtree(here / "dist")
    planned = epctx("plan", folder=here)
    assert planned.code == 0 and "runs" in planned.out
    dry = epctx("-v", "build", "--dry-run", "-o", "dist", folder=here)
    assert (dry.code, dry.out) == (0, planned.out)
    assert not (here / "dist").exists()
    found = json.loads(epctx("--format", "json", "build", folder=here).out)
    assert [group["state"] for group in found["groups"]] == ["built"]


def test_the_version_with_what_it_stands_on(here: Path) -> None:
    short, long = epctx("-V", folder=here).out, epctx("--version", "-v", folder=here).out
    assert short == f"epctx {__version__}\n" and long.startswith(short)
    assert epctx("-v", "-V", folder=here).out == long
    versions = dict(line.split() for line in long.splitlines())
    for name in ("onnxruntime", "onnx", "numpy"):
        assert versions[name] == importlib.metadata.version(name)
