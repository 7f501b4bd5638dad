"""What all of the source keeps to: no session falls back in silence, no remedy ends a check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pipeline" / "epctx"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SWITCHES = re.compile(
    r"numbers: ?off|numbers`? to off|--no-verify|--allow-|\ballow_[a-z_]+: ?true|without --locked"
    r"|without --strict|skip_|disable the check|switch (it|the check) off"
)
"""What takes a check away."""
REASONS = {
    "the manifest says `numbers: off`",
    "    allow_unknown_options: true    # epctx knows nothing of this EP's options",
    "a model is a link out of the manifest's folder: commands need --allow-outside",
    "# A model here is a link out of this folder: commands need `--allow-outside`.",
}
"""What says that somebody did take one away, or that there is none to take; no remedy."""


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The strings of a module that may reach a user, but its docstrings."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in documentation:
            yield node.lineno, str(node.value)


def switches(text: str) -> list[str]:
    """The sentences of a module's strings that name a way to take a check away."""
    told = (said for _, said in texts(ast.parse(text)) if SWITCHES.search(said))
    # An option of the command line is declared by its bare name.
    return [said for said in told if said not in REASONS and re.search(r"\s", said)]


def test_no_remedy_takes_a_check_away() -> None:
    found = {str(path): switches(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: told for path, told in found.items() if told} == {}


def test_a_remedy_that_does_is_found() -> None:
    for remedy in (
        '"see the log; `verify: {numbers: off}` builds without checking numbers"',
        'f"{listed}; `allow_unknown_options: true` on the entry lets others pass"',
        '"keep it inside, or allow it with --allow-outside"',
        '"build with --no-verify"',
    ):
        assert switches(f"raise CompileError('a', remedy={remedy})")


def falls_back(text: str) -> list[int]:
    """The lines where a session of onnxruntime is made that may end on another EP in silence.

    It may not where its EPs are the default EP alone, or `enable_fallback=0` is given.
    """
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "InferenceSession"
        and not _keeps(node)
    ]


def _keeps(call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if given.get("enable_fallback") == "0":
        return True
    return given.get("providers") in ("[DEFAULT_EP]", "['CPUExecutionProvider']")


def test_no_session_falls_back() -> None:
    found = {str(path): falls_back(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_session_that_does_is_found() -> None:
    for call in (
        "ort.InferenceSession(path)",
        "ort.InferenceSession(path, options, providers=names)",
        "ort.InferenceSession(path, options, enable_fallback=1)",
    ):
        assert falls_back(call) == [1]
    assert not falls_back("ort.InferenceSession(path, options, enable_fallback=0)")
    assert not falls_back("ort.InferenceSession(path, providers=[DEFAULT_EP])")
