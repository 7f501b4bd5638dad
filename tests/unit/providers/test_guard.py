"""An exception of an EP is the EP's error: one line names it and the method. It is no bug."""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from epctx.commands.doctor import probe
from epctx.errors import CompileError, InvalidGraph, ProviderUnavailable
from epctx.inference.session import Session
from epctx.providers.base import (
    ContextBinary,
    ExecutionProvider,
    Fingerprint,
)
from epctx.providers.guard import guard
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.providers.reference.workspace import ReferenceWorkspace
from epctx.stages import compile
from epctx.worker import pool
from tests.kit import command_line
from tests.kit.building import build, mlp
from tests.kit.command_line import inside
from tests.kit.inline import Inline

NAME = "FaultyExecutionProvider"
MANIFEST = f"""\
schema_version: 1
name: m
models: {{m: {{path: m.onnx}}}}
execution_providers: {{ep: {{provider: {NAME}}}}}
model_groups: {{g: {{models: [m], execution_providers: [ep]}}}}
"""


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot be printed")


Patch = Callable[..., None]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patch]:
    """Write a manifest for a third party's EP; the result gives members to the EP's class, and to
    that of its workspace: a class of its own each time, as `isinstance` remembers classes.
    """
    monkeypatch.syspath_prepend(command_line.FAULTY)
    monkeypatch.setattr(pool, "Worker", Inline)
    command_line.forget_eps()
    onnx.save(mlp(), tmp_path / "m.onnx")
    (tmp_path / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    module = importlib.import_module("epctx_faulty")
    base = module.FaultyExecutionProvider

    def patch(workspace: Mapping[str, object] = {}, **members: object) -> None:
        made = type("Workspace", (ReferenceWorkspace,), dict(workspace))
        if workspace:
            members["open_workspace"] = lambda self, spec: made(self.options, spec)
        own = type(NAME, (base,), {"isolated": False, **members})
        monkeypatch.setattr(module, NAME, own)

    yield patch
    command_line.forget_eps()


def raising(error: Callable[..., BaseException], *said: object) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error(*said)

    return fail


FAIL = raising(KeyError, "surprise")


def head(stderr: str) -> str:
    """The line of the error in what a command printed."""
    return next(line for line in stderr.splitlines() if line.startswith("error["))


@pytest.mark.parametrize(
    ("members", "method", "code"),
    [
        ({"fingerprint": FAIL}, "fingerprint", 5),
        ({"drivers": FAIL}, "drivers", 5),
        ({"get_capability": FAIL}, "get_capability", 6),
        ({"open_workspace": FAIL}, "open_workspace", 6),
        ({"unstable": "often", "why_unstable": FAIL}, "why_unstable", 6),
        ({"wants_inputs": property(FAIL)}, "wants_inputs", 6),
        ({"isolated": property(FAIL)}, "isolated", 6),
        ({"workspace": {"compile": FAIL}}, "compile", 6),
        ({"workspace": {"finish": FAIL}}, "finish", 6),
        ({"workspace": {"close": FAIL}}, "close", 6),
        ({"tolerance": FAIL}, "tolerance", 6),
        ({"check_compatibility": FAIL}, "check_compatibility", 7),
        ({"check_compatibility": lambda *_: [], "cannot_load": FAIL}, "cannot_load", 6),
        ({"native": True, "recognizes": FAIL}, "recognizes", 7),
        ({"native": True, "misfits": FAIL}, "misfits", 7),
        ({"native": True, "add_to": FAIL}, "add_to", 7),
        ({"native": True, "runs_apart": FAIL}, "runs_apart", 7),
        ({"load": FAIL}, "load", 7),
    ],
)
def test_a_build_names_the_ep_and_the_method(
    broken: Patch, tmp_path: Path, members: dict[str, Any], method: str, code: int
) -> None:
    broken(**members)
    ran = inside("build", "m.yaml", "-v", cwd=tmp_path)
    assert ran.returncode == code, ran.stderr
    assert f"{NAME} failed in `{method}`: KeyError: 'surprise'" in head(ran.stderr)
    assert "report it to the maker of epctx-faulty 1.0" in ran.stderr
    assert "raise error(*said)\nKeyError: 'surprise'" in ran.stderr, "-v has the traceback"
    assert "Traceback" not in inside("build", "m.yaml", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("fail", "why"),
    [
        (raising(StopIteration), "StopIteration"),
        (raising(AssertionError), "AssertionError"),
        (raising(RuntimeError, "two\nlines"), "RuntimeError: two lines"),
        (raising(SystemExit, 0), "SystemExit: 0"),
        (raising(PermissionError, errno.EACCES, "denied", "x.lic"), "PermissionError: [Errno 13] "),
        (raising(OddError), f"{__name__}.OddError: <exception str() failed>"),
    ],
)
def test_every_exception_is_told_in_one_line(
    broken: Patch, tmp_path: Path, fail: object, why: str
) -> None:
    for members in ({"fingerprint": fail}, {"workspace": {"compile": fail}}):
        broken(**members)
        ran = inside("build", "m.yaml", cwd=tmp_path)
        assert ran.returncode in (5, 6), ran.stderr
        assert re.search(rf"{NAME} failed in `(fingerprint|compile)`: {re.escape(why)}", ran.stderr)
        assert len(ran.stderr.partition("error[")[2].splitlines()) == 2


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"fingerprint": lambda self: None}, "`fingerprint`: TypeError: it returned NoneType, not"),
        ({"get_capability": lambda *_: []}, "`get_capability`: TypeError: it returned list, not"),
        ({"open_workspace": lambda *_: None}, "`close`: AttributeError: 'NoneType' object has no"),
        ({"workspace": {"compile": lambda *_: None}}, "`compile`: TypeError: 'NoneType' object is"),
        ({"workspace": {"finish": lambda *_: None}}, "`finish`: TypeError: 'NoneType' object is"),
        ({"tolerance": lambda *_: 0.1}, "`tolerance`: TypeError: it returned float, not Tolerance"),
        ({"isolated": property(lambda self: self.no)}, "`isolated`: AttributeError: "),
    ],
)
def test_a_wrong_result_is_told_as_well(
    broken: Patch, tmp_path: Path, members: dict[str, Any], said: str
) -> None:
    broken(**members)
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode in (5, 6), ran.stderr
    assert f"{NAME} failed in {said}" in head(ran.stderr)


def test_a_binary_that_fails_while_it_is_written_is_told(broken: Patch, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"begun"
        raise KeyError("surprise")

    def finish(self: ReferenceWorkspace) -> Sequence[ContextBinary]:
        return [ContextBinary(name="m_faulty.bin", chunks=chunks)]

    broken(workspace={"finish": finish})
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 6
    assert f"{NAME} failed in `chunks`: KeyError: 'surprise'" in head(ran.stderr)


def test_errors_that_the_ep_means_pass_as_they_are(broken: Patch, tmp_path: Path) -> None:
    missing = ProviderUnavailable("no license", remedy="buy one")
    broken(fingerprint=raising(lambda: missing))
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 5 and head(ran.stderr).endswith("no license")
    refused = CompileError("refuses the graph", remedy="use another")
    broken(workspace={"compile": raising(lambda: refused)})
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 6 and head(ran.stderr).endswith("refuses the graph")


def test_a_full_disk_is_no_fault_of_the_ep(broken: Patch, tmp_path: Path) -> None:
    broken(workspace={"finish": raising(OSError, errno.ENOSPC, "No space left on device", "x")})
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 9 and NAME not in head(ran.stderr)


def test_a_bug_of_epctx_between_calls_of_an_ep_stays_one(
    broken: Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken()
    monkeypatch.setattr(compile, "run", FAIL)
    ran = inside("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 1 and "a bug in epctx: KeyError: 'surprise'" in head(ran.stderr)
    assert NAME not in ran.stderr


def test_a_good_build_is_verified_inspected_and_diagnosed_with_a_broken_ep(
    broken: Patch, tmp_path: Path
) -> None:
    broken()
    assert inside("build", "m.yaml", cwd=tmp_path).returncode == 0
    broken(tolerance=FAIL)
    ran = inside("verify", "dist/m", "--manifest", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 7 and f"{NAME} failed in `tolerance`" in ran.stdout
    assert "crashed" not in ran.stdout
    binary = next(tmp_path.glob("dist/m/default/g/*.bin"))
    broken(recognizes=FAIL)
    assert inside("inspect", binary, cwd=tmp_path).returncode == 0, "another EP knows it"
    broken(fingerprint=FAIL)
    found = probe.diagnose(NAME)
    assert found.state == "broken" and found.failure is not None
    assert found.failure.what == f"{NAME} failed in `fingerprint`"


def test_a_session_names_the_ep(tmp_path: Path) -> None:
    class Broken(ReferenceExecutionProvider):
        load = FAIL

    folder = build(tmp_path, {"m": mlp()})
    broken: list[ExecutionProvider] = [Broken({})]
    with pytest.raises(InvalidGraph, match="failed in `load`: KeyError: 'surprise'") as raised:
        Session(folder / "m_ctx.onnx", providers=broken)
    assert isinstance(raised.value.__cause__, KeyError)


def test_what_the_ep_calls_itself_is_not_wrapped() -> None:
    class Careful(ReferenceExecutionProvider):
        def drivers(self) -> Mapping[str, str]:
            raise KeyError("none")

        def fingerprint(self) -> Fingerprint:
            try:
                return Fingerprint(toolchain=self.drivers())
            except KeyError:
                return Fingerprint(toolchain={"sdk": "unknown"})

    guarded = guard(Careful({}), "Careful", lambda: "careful 1")
    assert guarded.fingerprint().toolchain == {"sdk": "unknown"}
    assert isinstance(guarded, Careful)
