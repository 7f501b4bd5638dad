"""What is wrong at a place of a document, before it is told to the user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.errors import Violation
from epctx.parsing.document.tree import Keys, Mark, Node, path_text


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong, where, and what to do; `node` is the value that is wrong, None: a key is."""

    mark: Mark
    path: Keys
    what: str
    remedy: str
    node: Node | None = None
    code: Code = Code.MANIFEST


def at(node: Node, what: str, remedy: str, code: Code = Code.MANIFEST) -> Problem:
    """A problem of a value."""
    return Problem(mark=node.mark, path=node.path, what=what, remedy=remedy, node=node, code=code)


def at_key(node: Node, key: str, what: str, remedy: str, code: Code = Code.MANIFEST) -> Problem:
    """A problem of a key of the mapping `node`, or of all that it holds."""
    child = node.mapping.get(key)
    path = child.path if child is not None and child.path[-1:] == (key,) else (*node.path, key)
    mark = node.keys.get(key, node.mark)
    return Problem(mark=mark, path=path, what=what, remedy=remedy, code=code)


def of_kind(code: Code, problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems, with a code where they have none but the general one."""
    for problem in problems:
        yield problem if problem.code != Code.MANIFEST else replace(problem, code=code)


def refusal(reason: str) -> tuple[str, str]:
    """What and remedy of something that epctx owns; the reason may say "why; what to do"."""
    why, _, remedy = reason.partition("; ")
    return f"is refused: {why}", remedy or "remove it"


def violations(problems: Iterable[Problem], *, file: str) -> list[Violation]:
    """The problems as the user is told them, in their order."""
    return [
        Violation(
            file=file,
            line=problem.mark.line,
            column=problem.mark.column,
            path=path_text(problem.path),
            what=problem.what,
            remedy=problem.remedy,
            code=problem.code,
        )
        for problem in problems
    ]
