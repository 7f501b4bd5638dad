"""Workers that lie: an SDK in their process may have made of an answer anything of its form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from epctx.actions.compile import CompileResult
from epctx.cli.app import app
from epctx.files.digest import of_bytes
from epctx.files.outputs import OutputFile
from tests.kit.inline import Inline
from tests.kit.projects import make


def file(change: Callable[[OutputFile], OutputFile]) -> Callable[[CompileResult], CompileResult]:
    """The first file is another."""

    def lie(answer: CompileResult) -> CompileResult:
        first, *rest = answer.output.files
        return replace(answer, output=replace(answer.output, files=(change(first), *rest)))

    return lie


def named(name: str) -> Callable[[CompileResult], CompileResult]:
    return file(lambda made: replace(made, name=name))


def of_another_ep(answer: CompileResult) -> CompileResult:
    (model,) = answer.models
    parts = tuple(replace(part, provider="nobody") for part in model.partitions)
    return replace(answer, models=(replace(model, partitions=parts),))


def files(change: Callable[[list[OutputFile]], list[OutputFile]]) -> Callable[..., CompileResult]:
    def lie(answer: CompileResult) -> CompileResult:
        made = tuple(change(list(answer.output.files)))
        return replace(answer, output=replace(answer.output, files=made))

    return lie


NOT_THERE = (6, "listed files do not exist")
COMPILED: dict[str, tuple[Callable[[CompileResult], CompileResult], int, str]] = {
    "another content": (
        file(lambda f: replace(f, blake3=of_bytes(b"x"))),
        6,
        "listed digests differ",
    ),
    "another size": (file(lambda f: replace(f, size=f.size + 1)), *NOT_THERE),
    "a file that is not there": (named("gone.bin"), *NOT_THERE),
    "a file outside": (named("../../../../a.onnx"), *NOT_THERE),
    "an absolute path": (named("/etc/hostname"), *NOT_THERE),
    "NUL": (named("a\0b"), *NOT_THERE),
    "no name": (named(""), *NOT_THERE),
    "no files": (files(lambda made: []), 6, "no file, or one file twice"),
    "a file less": (files(lambda made: made[1:]), 6, "listed digests differ"),
    "a file twice": (files(lambda made: made * 2), 6, "no file, or one file twice"),
    "no models": (lambda a: replace(a, models=()), 6, "other models"),
    "another model": (lambda a: replace(a, models=(replace(a.models[0], name="b"),)), 6, "other"),
    "models without a file": (
        lambda a: replace(a, output=replace(a.output, models={"a": "b_ctx.onnx"})),
        6,
        "models without a file",
    ),
    "nothing of exclusions": (lambda a: replace(a, unmatched=()), 6, "other models"),
    "an EP that the group has not": (of_another_ep, 6, "execution providers that"),
}


@pytest.mark.parametrize("what", COMPILED)
def test_a_lie_is_told_and_nothing_is_published(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, code, says = COMPILED[what]

    def lying(worker: Inline, answer: object) -> object:
        return lie(answer) if isinstance(answer, CompileResult) else answer

    made = make(tmp_path / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    honest = Inline.answer
    monkeypatch.setattr(Inline, "answer", lying)
    ended = CliRunner().invoke(app, ["build", "m.yaml", "--jobs", "1"])
    said = ended.output + ended.stderr
    assert ended.exit_code == code, said
    assert says in said and "  -> " in said
    assert "Traceback" not in said and "a bug in epctx" not in said
    assert not (made.folder / "dist" / "m").exists() and not made.lock.exists()

    monkeypatch.setattr(Inline, "answer", honest)
    again = CliRunner().invoke(app, ["build", "m.yaml", "--jobs", "1"])
    assert again.exit_code == 0, again.output  # the lie is not believed by the cache
