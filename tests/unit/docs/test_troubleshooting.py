"""docs/troubleshooting.md quotes messages that there are: of epctx, of ONNX Runtime and its EPs.

A quotation is what stands in quotation marks in a heading, or after `>`; `…` in it is anything.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import epctx

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
_QUOTED = re.compile(r'"([^"]+)"')
_SHORT = 6
"""Letters of what stands between two `…` and tells nothing."""


def quotations(*beginnings: str) -> Iterator[str]:
    """What the chapters quote whose titles begin so."""
    for chapter in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        if chapter.startswith(beginnings):
            for heading in re.findall(r"^### (.*)$", chapter, re.MULTILINE):
                yield from _QUOTED.findall(heading)
            yield from re.findall(r"^> `(.*)`$", chapter, re.MULTILINE)


def fragments(quotation: str) -> Iterator[str]:
    return (part for each in quotation.split("…") if len(part := each.strip()) > _SHORT)


@cache
def said_by_epctx() -> str:
    """Every text in the code, and the pages of errors, whose examples are run by tests."""
    modules = sorted(Path(epctx.__file__).parent.rglob("*.py"))
    texts = [
        node.value
        for module in modules
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    pages = (page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "errors").glob("*.md"))
    schemas = (page.read_text(encoding="utf-8") for page in (ROOT / "schemas").rglob("*.json"))
    return "\n".join([*texts, *pages, *schemas])


@cache
def said_by_libraries() -> tuple[bytes, ...]:
    found = [importlib.util.find_spec(name) for name in ("onnxruntime", "onnxruntime_qnn")]
    folders = [Path(spec.origin).parent for spec in found if spec is not None and spec.origin]
    files = (file for folder in folders for file in sorted(folder.rglob("*")))
    wanted = (file for file in files if re.search(r"\.(so|dll|py)(\.|$)", file.name))
    return tuple(file.read_bytes() for file in wanted if file.stat().st_size < 1 << 28)


def missing(quoted: Iterable[str], libraries: Iterable[bytes] = ()) -> list[str]:
    parts = (part for quotation in quoted for part in fragments(quotation))
    return [
        part
        for part in parts
        if part not in said_by_epctx() and not any(part.encode() in each for each in libraries)
    ]


def test_messages_of_epctx() -> None:
    found = list(quotations("epctx"))
    assert len(found) > 15
    assert not missing(found)


@pytest.mark.needs("module onnxruntime_qnn", "the texts are those of its libraries")
def test_messages_of_onnxruntime_and_qnn() -> None:
    found = list(quotations("ONNX Runtime", "QNN"))
    assert len(found) > 15
    assert not missing(found, said_by_libraries())


def test_a_message_that_there_is_not_is_found() -> None:
    assert missing(["unknown option … there is no such message"]) == ["there is no such message"]


def test_every_code_of_an_error_has_its_page() -> None:
    linked = set(re.findall(r"\(errors/(E\d{4})\.md\)", TEXT))
    assert len(linked) > 10
    assert all((ROOT / "docs" / "errors" / f"{code}.md").exists() for code in linked)
