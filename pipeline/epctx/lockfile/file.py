"""`<manifest stem>.lock.yaml`: written by a whole successful build, read by every comparison.

schemas/lock.schema.json describes the format, `types` has its types. Each version has one reader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import LockError
from epctx.files import digest, filenames, paths
from epctx.files.digest import Digest
from epctx.files.entries import read_document
from epctx.files.outputs import GOLDEN, SUMS
from epctx.lockfile import hosts, yaml_text
from epctx.lockfile.types import VERSION, Lock, LockedFile, LockedHost, LockedPackage
from epctx.parsing.document.tree import resolve

HEAD = "# Made by `epctx build`. Check it in; `epctx build --locked` holds a build to it.\n"
_NAME = "name the .lock.yaml beside a manifest; if this is its place, remove it"
_MEND = "mend it, or delete it: `epctx build` then writes a new one"
_FIELD = re.compile(r"unknown field `(.+?)`")
_unreadable = partial(LockError, code=Code.LOCK_UNREADABLE)


def place(manifest: Path) -> Path:
    """Return the path of a manifest's lock, beside it."""
    return manifest.with_name(f"{manifest.stem}.lock.yaml")


def relative(path: Path, folder: Path) -> str:
    """Return a path relative to the manifest's folder, with `/`; never an absolute one."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # Windows: on another drive, which `--allow-outside` allows
        return f"outside/{path.name}"


def text(lock: Lock) -> str:
    """Return the text of a lock: sorted, one entry a line, the same for the same lock."""
    fields = msgspec.to_builtins(lock)
    for name in ("compositions", "golden", "hosts", "oci", "package", "ranges"):
        if not fields.get(name):
            fields.pop(name, None)
    return HEAD + yaml_text.text(fields)


def built(lock: Lock) -> bytes:
    """Return a lock as a build writes it, without the part that `epctx package` adds."""
    return text(replace(lock, oci={})).encode()


def read(path: Path) -> Lock:
    """Read a lock of any known version.

    Raises:
        LockError: it is missing, is no lock, or has an unknown version.
    """
    return parse(_content(path), where=path.as_posix())


def find(path: Path) -> Lock | None:
    """Read a lock as `read` does; return None if the file does not exist."""
    try:
        return read(path)
    except LockError as error:
        if error.code is not Code.NO_LOCK:
            raise
        return None


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
        what = f"has lock_version {version!r}, this epctx reads {', '.join(map(str, READERS))}"
        raise _unreadable(what, file=where, remedy=f"update epctx, or {_MEND}" if newer else _MEND)
    try:
        lock = reader(document)
        _check(lock)
    except ValueError as error:  # msgspec's ValidationError is one
        key = _FIELD.search(str(error))
        line, column = _first(content, rf"^ *({re.escape(key[1])}):") if key else (0, 0)
        remedy = f"update epctx if a newer one wrote it, or {_MEND}"
        what, why = "is not a lock", str(error)
        raise _unreadable(
            what, file=where, line=line, column=column, why=why, remedy=remedy
        ) from error
    return lock


def action_names(lock: Lock) -> set[str]:
    """Return the cache names of all actions in a lock, for all kinds of host."""
    groups = lock.groups.values()
    sessions = [group.session_groups for group in groups]
    sessions += [each for entry in lock.hosts.values() for each in entry.groups.values()]
    keys = {model.key for group in groups for model in group.models.values()}
    keys |= {session.key for each in sessions for session in each.values()}
    keys |= {
        key for group in groups for each in group.pieces.values() for key in (each.cut, *each.keys)
    }
    return {key.partition(":")[2] for key in keys}


def _lock(document: Mapping[str, object]) -> Lock:
    return msgspec.convert(document, Lock)


def _check(lock: Lock) -> None:
    """Check all values that become paths or digests: anybody may have written the file."""
    if problem := filenames.problem(lock.name):
        raise ValueError(f"the name {problem}")
    if (lock.lock_version == 2) is not bool(lock.hosts):
        raise ValueError("lock_version must be 2 with `hosts`, and 1 without")
    _check_hosts(lock)
    for content in lock.oci.values():
        digest.parsed(content, "sha256")
    for view in hosts.views(lock) if lock.hosts else (lock,):
        _check_view(view)


def _check_hosts(lock: Lock) -> None:
    """Check that the name of each entry fits its facts, and that all have the same folders."""
    shapes = [_shape(entry) for entry in lock.hosts.values()]
    for name, entry in lock.hosts.items():
        if name != hosts.name(entry.execution_providers):
            raise ValueError(f"the facts of {name!r} do not match its name")
        folders = {*entry.groups, *entry.compositions}
        for names, allowed in (
            (entry.groups, lock.groups),
            (entry.compositions, lock.compositions),
            (entry.golden, folders),
            (entry.execution_providers, lock.execution_providers),
        ):
            if unknown := names.keys() - allowed:
                raise ValueError(
                    f"{name!r} of `hosts` names {min(unknown)!r}, which the lock does not have"
                )
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("the entries of `hosts` differ in their groups or execution providers")


def _shape(entry: LockedHost) -> object:
    groups = {folder: set(sessions) for folder, sessions in entry.groups.items()}
    return groups, set(entry.compositions), set(entry.execution_providers)


def _check_view(lock: Lock) -> None:
    for folder, files in lock.folders.items():
        target, _, group = folder.partition("/")
        for name in (target, group):
            if problem := filenames.problem(name):
                raise ValueError(f"a target or group {problem}")
        _digests(files)
    for folder, files in lock.golden.items():
        if folder not in lock.folders:
            raise ValueError(f"golden files of an unknown folder: {folder!r}")
        _names(files)
        _digests(files)
    if lock.package is not None:
        _check_package(lock, lock.package)


def _check_package(lock: Lock, package: LockedPackage) -> None:
    for variant in package.variants:
        group = lock.groups.get(variant.group)
        if group is None or set(variant.models) != set(group.models):
            raise ValueError(f"a variant of the package does not fit any group: {variant.group!r}")
        if unknown := set(variant.execution_providers) - set(package.execution_providers):
            raise ValueError(f"the package has no execution provider {min(unknown)!r}")
        _names(variant.files)
        _digests(variant.files)
    for files in package.assets.values():
        for path in files:
            if problem := paths.objection(path):
                raise ValueError(f"the file {path!r} of an asset: {problem}")
        _digests(files)


def _names(files: Iterable[str]) -> None:
    for name in files:
        if not paths.is_bare(name):
            raise ValueError(f"{name!r} is not a file name")


def _digests(files: Mapping[str, LockedFile]) -> None:
    for file in files.values():
        Digest("sha256", file.sha256)


READERS: Mapping[int, Callable[[Mapping[str, object]], Lock]] = {1: _lock, 2: _lock}
"""One reader for each version; an old one converts to the present types."""


def _content(path: Path) -> bytes:
    try:
        content = read_document(path, limits.LOCK_BYTES.value)
    except FileNotFoundError:
        raise LockError(
            "there is no lock",
            file=path.as_posix(),
            remedy="run `epctx build`, which writes it",
            code=Code.NO_LOCK,
        ) from None
    except OSError as error:
        what, why = "cannot be read", error.strerror or str(error)
        raise _unreadable(what, file=path.as_posix(), why=why, remedy=_NAME) from error
    if len(content) > limits.LOCK_BYTES.value:
        what, remedy = f"is larger than {limits.LOCK_BYTES}", f"{_NAME}; {limits.LOCK_BYTES.remedy}"
        raise _unreadable(what, file=path.as_posix(), remedy=remedy)
    return content


def _first(content: bytes, pattern: str) -> tuple[int, int]:
    """Return line and column of the first match of a pattern's group; zeros if there is none."""
    match = re.search(pattern.encode(), content, re.MULTILINE)
    before = content[: match.start(1)] if match else b""
    return (before.count(b"\n") + 1, len(before) - before.rfind(b"\n")) if match else (0, 0)


def _document(content: bytes, where: str) -> Mapping[str, object]:
    try:
        document = _values(content.decode())
    except (yaml.YAMLError, ValueError) as error:
        mark, (line, column) = getattr(error, "problem_mark", None), _first(content, "^(<{7} )")
        if mark and not line:
            line, column = mark.line + 1, mark.column + 1
        what, why = "is not valid YAML", getattr(error, "problem", None) or str(error)
        remedy = f"take either side of a merge conflict, or {_MEND}"
        raise _unreadable(
            what, file=where, line=line, column=column, why=why, remedy=remedy
        ) from error
    if not isinstance(document, dict):
        raise _unreadable("is not a lock", file=where, remedy=_MEND)
    return document


def _values(text: str) -> object:
    """Return the values of a document, with scalars as in a manifest; keys are always text.

    They are made from the parser's events, so that aliases, tags and deep nesting are refused
    before they can use all memory or crash.
    """
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    documents: list[object] = []
    for event in events:
        if isinstance(event, yaml.NodeEvent):
            if documents:
                raise _refused("a second document starts", event)
            documents.append(_value(event, events, limits.LOCK_DEPTH.value))
    return documents[0] if documents else None


def _value(event: yaml.Event, rest: Iterator[yaml.Event], depth: int) -> object:
    """Return the value that begins with `event`; take its other events from `rest`."""
    _require_plain(event)
    if isinstance(event, yaml.ScalarEvent):
        return resolve(event.value) if event.implicit[0] else event.value
    if not depth:
        raise _refused("it is nested deeper than any lock", event)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[object] = []
        while not isinstance(item := next(rest), yaml.SequenceEndEvent):
            items.append(_value(item, rest, depth - 1))
        return items
    mapping: dict[str, object] = {}
    while not isinstance(key := next(rest), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise _refused("it has a key that is not text", key)
        _require_plain(key)
        if key.value in mapping:
            raise _refused(f"it has the key {key.value!r} twice", key)
        mapping[key.value] = _value(next(rest), rest, depth - 1)
    return mapping


def _require_plain(event: yaml.Event) -> None:
    for name in ("anchor", "tag"):  # an alias names its anchor
        if (value := getattr(event, name, None)) is not None:
            kind = "alias" if isinstance(event, yaml.AliasEvent) else name
            raise _refused(f"it has the {kind} {value!r}, which no lock has", event)


def _refused(problem: str, event: Any) -> Exception:

    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def published_files(lock: Lock, golden: Collection[str]) -> dict[str, LockedFile]:
    """Return every published file, by its path from `dist/<name>`, with `/`.

    Args:
        golden: folders, `<target>/<group or composition>`, whose golden files are included.
    """
    files: dict[str, LockedFile] = {}
    for folder, outputs in lock.folders.items():
        files |= dict(_folder(folder, outputs))
    for folder in golden:
        files |= dict(_folder(f"{folder}/{GOLDEN}", lock.golden[folder]))
    return files


def sums_file(outputs: Mapping[str, LockedFile]) -> LockedFile:
    """Return the entry of SHA256SUMS of a folder with these files."""
    text = "".join(f"{outputs[name].sha256}  {name}\n" for name in sorted(outputs)).encode()
    return LockedFile(sha256=digest.of_bytes(text, "sha256").hex, size=len(text))


def _folder(folder: str, outputs: Mapping[str, LockedFile]) -> Iterator[tuple[str, LockedFile]]:
    for name, file in {**outputs, SUMS: sums_file(outputs)}.items():
        yield f"{folder}/{name}", file
