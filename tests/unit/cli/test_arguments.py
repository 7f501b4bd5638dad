from __future__ import annotations

import pytest

from epctx.cli.arguments import normal


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("build m.yaml -v", "build m.yaml -v"),
        ("-v build m.yaml", "build m.yaml -v"),
        ("-vv -q --color never cache info", "cache info -vv -q --color never"),
        ("-qv build m.yaml", "build m.yaml -qv"),
        ("cache -v info", "cache info -v"),
        ("-q cache --format json info", "cache info -q --format json"),
        ("--format=json plan m.yaml", "plan m.yaml --format=json"),
        ("--format json run a.onnx -- -x", "run a.onnx --format json -- -x"),
        ("--version -v", "--version -v"),
        ("-v --version", "-v --version"),
        ("-v", "-v"),
        ("--verbos build", "--verbos build"),
        ("--help", "--help"),
        ("", ""),
    ],
)  # fmt: skip
def test_options_of_all_commands_may_come_first(given: str, understood: str) -> None:
    assert " ".join(normal(given.split())) == understood
    assert normal(normal(given.split())) == normal(given.split())


def test_flags_of_another_tool_in_one_word_are_no_options() -> None:
    given = ["import", "ep-weight-sharing", "-e qnn -v a.onnx", "-o", "m.yaml", "-v"]
    assert normal(given) == [*given[:2], " -e qnn -v a.onnx", *given[3:]]
    assert normal(normal(given)) == normal(given)
    assert normal(["run", "-i x"]) == ["run", "-i x"]
