"""What a build takes, and nobody may have meant."""

from pathlib import Path

import pytest

from epctx.parsing import document
from epctx.parsing.rules.check import doubts

TEXT = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}, b: {path: b.onnx}}
execution_providers:
  htp: {provider: QNNExecutionProvider, options: {soc_model: 60}}
  ref: {provider: ReferenceExecutionProvider}
model_groups:
  g: {models: [a], execution_providers: [htp]}
  h: {models: [b], execution_providers: [ref]}
"""


def told(text: str) -> list[tuple[tuple[str | int, ...], str]]:
    root = document.parse(text.encode(), file="m.yaml", path=Path("m.yaml")).root
    return [(problem.path, problem.what) for problem in doubts(root)]


def path_of(alias: str) -> tuple[str, str]:
    return "execution_providers", alias


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("[b]", "[a]", ("models", "b")),
        ("[ref]", "[htp]", ("execution_providers", "ref")),
        ("{soc_model: 60}", "{}", ("execution_providers", "htp")),
    ],
)
def test_each_doubt(old: str, new: str, path: tuple[str, ...]) -> None:
    assert told(TEXT) == []
    ((place, _),) = told(TEXT.replace(old, new))
    assert place == path


@pytest.mark.parametrize("given", ["{soc_model: 0}", "{htp_arch: 73}"])
def test_advice_is_for_who_says_nothing(given: str) -> None:
    assert told(TEXT.replace("{soc_model: 60}", given)) == []


def test_what_a_target_uses_is_used() -> None:
    """A target takes an option away, another uses what the group does not."""
    less = "targets:\n  x: {execution_providers: {htp: {options: {soc_model: null}}}}\n"
    assert [path for path, _ in told(TEXT + less)] == [("targets", "x", *path_of("htp"))]
    used = "targets:\n  x: {model_groups: {g: {execution_providers: [ref, htp]}}, exclude: [h]}\n"
    assert told(TEXT + used) == []
