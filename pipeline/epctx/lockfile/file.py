"""`<manifest stem>.lock.yaml`: written by a whole successful build, read by whoever compares.

The form is schemas/lock.schema.json; `types` are its types, and there is one reader a version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from epctx import limits
from epctx.errors import LockError
from epctx.files import filenames
from epctx.files.digest import Digest
from epctx.files.entries import open_entry
from epctx.lockfile import yaml_text
from epctx.lockfile.types import VERSION, Lock

HEAD = "# Made by `epctx build`. Check it in; `epctx build --locked` holds a build to it.\n"
_AGAIN = "write it anew with `epctx build`"


def place(manifest: Path) -> Path:
    """Where a manifest's lock is: beside it."""
    return manifest.with_name(f"{manifest.stem}.lock.yaml")


def text(lock: Lock) -> str:
    """A lock as it is written: sorted, one entry a line, the same for the same lock."""
    plain = msgspec.to_builtins(lock)
    if not lock.compositions:
        del plain["compositions"]
    return HEAD + yaml_text.text(plain)


def read(path: Path) -> Lock:
    """Read a lock of any version that there was.

    Raises:
        LockError: it is missing, is no lock, or is of a version that this epctx does not know.
    """
    return parse(_content(path), where=path.as_posix())


def parse(content: bytes, *, where: str) -> Lock:
    """Parse a lock; `where` names it in messages.

    Raises:
        LockError: as `read`.
    """
    document = _document(content, where)
    version = document.get("lock_version")
    reader = READERS.get(version) if isinstance(version, int) else None
    if reader is None:
        newer = isinstance(version, int) and version > VERSION
        raise LockError(
            f"has lock_version {version!r}, this epctx reads {', '.join(map(str, READERS))}",
            file=where,
            remedy="update epctx" if newer else _AGAIN,
        )
    try:
        lock = reader(document)
        _check(lock)
    except ValueError as error:  # msgspec's ValidationError is one
        raise LockError("is no lock", file=where, why=str(error), remedy=_AGAIN) from error
    return lock


def action_names(lock: Lock) -> set[str]:
    """The cache's names of all actions that the lock reaches."""
    return {
        key.partition(":")[2]
        for group in lock.groups.values()
        for key in (
            *(model.key for model in group.models.values()),
            *(session.key for session in group.session_groups.values()),
        )
    }


def _version_1(document: Mapping[str, object]) -> Lock:
    return msgspec.convert(document, Lock)


def _check(lock: Lock) -> None:
    """Hold what becomes a path or a digest to what one is: anybody may have written the file."""
    if problem := filenames.problem(lock.name):
        raise ValueError(f"the name {problem}")
    for folder, files in lock.folders.items():
        target, _, group = folder.partition("/")
        for name in (target, group):
            if problem := filenames.problem(name):
                raise ValueError(f"a target or group {problem}")
        for file in files.values():
            Digest("sha256", file.sha256)


READERS: Mapping[int, Callable[[Mapping[str, object]], Lock]] = {1: _version_1}
"""One reader a version; an old one makes of its form what the types are now."""


def _content(path: Path) -> bytes:
    try:
        with open_entry(path.resolve()) as stream:
            content = stream.read(limits.LOCK_BYTES.value + 1)
    except FileNotFoundError:
        raise LockError(
            "there is no lock", file=path.as_posix(), remedy="run `epctx build`, which writes it"
        ) from None
    except OSError as error:
        raise LockError(
            "cannot be read",
            file=path.as_posix(),
            why=error.strerror or str(error),
            remedy="name the .lock.yaml beside a manifest",
        ) from error
    if len(content) > limits.LOCK_BYTES.value:
        raise LockError(
            f"is larger than {limits.LOCK_BYTES}",
            file=path.as_posix(),
            remedy=f"name the .lock.yaml beside a manifest; {limits.LOCK_BYTES.remedy}",
        )
    return content


def _document(content: bytes, where: str) -> Mapping[str, object]:
    import yaml

    try:
        text = content.decode()
        _refuse_bombs(text)
        document = yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise LockError(
            "is no YAML",
            file=where,
            line=mark.line + 1 if mark else 0,
            column=mark.column + 1 if mark else 0,
            why=getattr(error, "problem", None) or str(error),
            remedy=f"if it has marks of a merge, take either side, then {_AGAIN}",
        ) from error
    if not isinstance(document, dict):
        raise LockError("is no lock", file=where, remedy=_AGAIN)
    return document


def _refuse_bombs(text: str) -> None:
    """Refuse aliases and depth, which no lock has: building them can take all memory, or crash."""
    import yaml

    depth, deepest = 0, limits.LOCK_DEPTH.value
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.AliasEvent):
            raise _refused("it has an alias, which no lock has", event.start_mark)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > deepest:
            raise _refused("it is nested deeper than any lock", event.start_mark)


def _refused(problem: str, mark: Any) -> Exception:
    import yaml

    return yaml.constructor.ConstructorError(None, None, problem, mark)


@functools.cache
def _loader() -> Any:
    """A safe loader that refuses keys that are there twice."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    raise _refused(f"it has the key {key.value!r} twice", key.start_mark)
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    return Loader
