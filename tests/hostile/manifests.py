"""Manifests that somebody else wrote: bombs, and paths and names that lead elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import project
from tests.hostile.table import Room, add

BOMB, PATH, NAME = "manifest: bombs and broken text", "manifest: paths", "manifest: names"


def text(name: str, content: bytes | Callable[[], bytes], says: str, **rest: Any) -> None:
    """A row: the manifest is these bytes."""

    def make(room: Room) -> None:
        data = content if isinstance(content, bytes) else content()
        (room.folder / "m.yaml").write_bytes(data)

    add(BOMB, name, make, says=says, **{"code": 3, **rest})


def laughs(levels: int, width: int) -> bytes:
    """Aliases of aliases: `width ** levels` values."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines).encode()


def listed(name: str, wanted: str, count: int) -> bytes:
    """A group of so many models, each by a name that is not quite that of one."""
    models = "".join(f"  {name.format(n)}: {{path: a.onnx}}\n" for n in range(count))
    models = models if "{}" in name else f"  {name}: {{path: a.onnx}}\n"
    names = ", ".join(wanted.format(n) for n in range(count))
    return f"{_HEAD}models:\n{models}model_groups: {{g: {{models: [{names}]}}}}\n".encode()


def product(count: int, models: int) -> bytes:
    """So many groups for so many targets."""
    names = [f"m{n}" for n in range(models)]
    known = "".join(f"  {name}: {{path: a.onnx}}\n" for name in names)
    groups = "".join(f"  g{n}: {{models: [{', '.join(names)}]}}\n" for n in range(count))
    targets = "".join(f"  t{n}: {{}}\n" for n in range(count))
    return f"{_HEAD}models:\n{known}model_groups:\n{groups}targets:\n{targets}".encode()


_HEAD = """schema_version: 1
name: m
execution_providers: {r: {provider: ReferenceExecutionProvider}}
defaults: {execution_providers: [r]}
"""

text("empty", b"", "m.yaml: is empty")
text("NULs", bytes(1000), "control character")
text("not UTF-8", b"name: \xff\xfe", "is not UTF-8")
text("UTF-16", "name: x".encode("utf-16"), "is not UTF-8")
text("a number alone", b"42", "m.yaml")
text("a list", b"[1, 2]", "m.yaml")
text("an ONNX model", b"\x08\x0a\x12\x05epctx", "control character")
text("two documents", b"name: x\n---\nname: y\n", "a second document")
text("5 MiB", lambda: b"# " + b"x" * (5 << 20), "is larger than 4 MiB")
text("a billion laughs", lambda: laughs(20, 10), "holds more than 100,000 values")
text(
    "a quadratic alias",
    lambda: b"a: &a [" + b"x," * 900 + b"]\nb: [" + b"*a," * 900 + b"]",
    "holds more than 100,000 values",
)
text("aliases of merged keys", lambda: _merges(), "m.yaml")
text("an alias inside itself", b"a: &a [*a]", "stands inside &a")
text("an alias of nothing", b"a: *b", "has no &b before it")
text("nested 100,000 deep", b"[" * 100_000, "is nested deeper than 64 levels")
text("nested 100,000 deep by blocks", b"- " * 100_000, "is nested deeper than 64 levels")
text("nested mappings", b"{a: " * 50_000, "is nested deeper than 64 levels")
text(
    "200,000 keys",
    lambda: b"\n".join(b"k%d: 1" % n for n in range(200_000)),
    "100,000 values",
    seconds=90.0,
)
text(
    "1,500 names that are misspelt, of 1,500",
    lambda: listed("model{}x", "mode1{}x", 1500),
    'did you mean "model10x"?',
)
text("a name that is listed 3,000 times", lambda: listed("a", "a", 3000), "is listed twice")
text(
    "200 groups of 20 models for 200 targets",
    lambda: product(200, 20),
    "values, more than 100,000",
    seconds=5.0,
)
text("a number of 100,000 digits", b"schema_version: " + b"9" * 100_000, "schema_version")
text("a key of 1 MiB", b"k" * (1 << 20) + b": 1", "m.yaml")
text("a tag that makes an object", b"name: !!python/object/apply:os.system [id]", "has the tag")
text("a tag that reads a file", b"name: !include /etc/passwd", "has the tag")
text("a duplicate key", b"name: a\nname: b\n", "is there twice")
text("infinity", b"schema_version: .inf", "not a finite number")
text("escape sequences", b'"\\e[2Jname": 1', "m.yaml")
text("a bracket that nobody closes", b"models: {a: [", "m.yaml")


def _merges() -> bytes:
    lines = ["m0: &m0 {a: 1}"]
    lines += [f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 50)}]}}" for n in range(1, 40)]
    return "\n".join(lines).encode()


def document(
    kind: str, name: str, change: Callable[[dict[str, Any]], object], says: str, **rest: Any
) -> None:
    """A row: the sound manifest with a change."""

    def make(room: Room) -> None:
        def filled(found: dict[str, Any]) -> None:
            change(found)
            for model in found["models"].values():
                for key in ("path", "external_data_dir"):
                    if key in model:
                        model[key] = model[key].replace("{outside}", room.outside.as_posix())

        project.manifest(room, filled)

    add(kind, name, make, says=says, **{"code": 3, **rest})


def path(name: str, value: str, says: str, **rest: Any) -> None:
    """A row: the model's path."""
    document(PATH, name, lambda m: m["models"]["a"].update(path=value), says, **rest)


path("`..`", "../outside/secret", "leads out of the manifest's folder")
path("`..` in the middle", "x/../../outside/secret", "leads out of the manifest's folder")
path("absolute", "{outside}/secret", "is an absolute path")
path("a drive letter", "C:/models/a.onnx", "is an absolute path")
path("a drive's own folder", "C:a.onnx", "is an absolute path")
path("backslashes", "..\\outside\\secret", "has a backslash")
path("a UNC path", "\\\\server\\share\\a.onnx", "has a backslash")
path("a UNC path with slashes", "//server/share/a.onnx", "is an absolute path")
path("a URL", "https://example.com/a.onnx", "is a URL")
path("a file URL", "file:///etc/passwd", "is a URL")
path("a home folder", "~/a.onnx", "starts with ~")
path("empty", "", "path")
path("NUL", "a\0.onnx", "path")
path("5000 characters", "a" * 5000, "File name too long", code=4, posix=True)
path("1000 folders", "d/" * 1000 + "a.onnx", "path", code=4)
path("a folder", ".", "is a folder", code=4, posix=True)
path("a line break", "a\n.onnx", "without control characters")
path("an escape sequence", "\x1b[2J.onnx", "without control characters")
path("the manifest itself", "m.yaml", "m.yaml", code=4)
path("the system's memory", "/proc/self/mem", "is an absolute path")
path("a look-alike letter", "\u0430.onnx", "does not exist", code=4)
path("a decomposed letter", "a\u0301.onnx", "does not exist", code=4)
path("a reserved name of Windows", "NUL", "NUL", code=4)
path("a stream of NTFS", "a.onnx:secret", "a.onnx:secret", code=4)
path("a device path", "\\\\.\\PhysicalDrive0", "has a backslash")
path("another case", "A.onnx", "A.onnx", code=4, posix=True)


def model_file(name: str, make: Callable[[Room], object], says: str, **rest: Any) -> None:
    """A row: what is at the model's path is something else."""

    def spoil(room: Room) -> None:
        (room.folder / "a.onnx").unlink()
        make(room)

    add(PATH, f"the model is {name}", spoil, says=says, **{"code": 4, "posix": True, **rest})


model_file(
    "a link out of the folder",
    lambda room: (room.folder / "a.onnx").symlink_to(room.outside / "secret"),
    "leads out of the manifest's folder",
    code=3,
)
model_file(
    "a link to itself",
    lambda room: (room.folder / "a.onnx").symlink_to("a.onnx"),
    "models.a.path: cannot be followed",
    code=3,
)
model_file(
    "a link to /dev/zero",
    lambda room: (room.folder / "a.onnx").symlink_to("/dev/zero"),
    "leads out of the manifest's folder",
    code=3,
)
model_file(
    "a link to /dev/zero, outside being allowed",
    lambda room: (room.folder / "a.onnx").symlink_to("/dev/zero"),
    "not a regular file",
    command=("build", "m.yaml", "--jobs", "1", "--allow-outside"),
)
model_file("a socket", lambda room: _socket(room.folder / "a.onnx"), "a.onnx: cannot be read")
model_file(
    "a hard link to a file outside (no link can be told from it)",
    lambda room: (room.folder / "a.onnx").hardlink_to(room.outside / "secret"),
    "a.onnx: is",
)
model_file("a FIFO", lambda room: os.mkfifo(room.folder / "a.onnx"), "not a regular file")
model_file("a folder", lambda room: (room.folder / "a.onnx").mkdir(), "is a folder")


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)  # a whole path may be too long for one


def name(what: str, value: str, says: str, **rest: Any) -> None:
    """Rows: the name in each place that becomes part of a file's name."""

    def model(m: dict[str, Any]) -> None:
        m["models"][value] = m["models"].pop("a")
        m["model_groups"]["g"]["models"] = [value]

    def group(m: dict[str, Any]) -> None:
        m["model_groups"][value] = m["model_groups"].pop("g")

    document(NAME, f"a model named {what}", model, says, **rest)
    document(NAME, f"a group named {what}", group, says, **rest)
    document(NAME, f"a manifest named {what}", lambda m: m.update(name=value), says, **rest)
    document(NAME, f"a target named {what}", lambda m: m.update(targets={value: {}}), says, **rest)


name("`..`", "..", "starts with")
name("a path", "../../outside/x", "has the character")
name("a folder in it", "a/b", "has the character")
name("a backslash in it", "a\\b", "has the character")
name("a reserved name of Windows", "aux", "is a device on Windows")
name("a reserved name with a suffix", "COM1.x", "is a device on Windows")
name("a look-alike letter", "\u0430bc", "has the character")
name("a line break", "a\nb", "has the character")
name("NUL", "a\0b", "has the character")
name("a UNC path", "\\\\server\\share", "has the character")
name("an absolute path", "/etc/x", "has the character")
name("a decomposed letter", "a\u0301", "has the character")
name("with a colon", "a:b", "has the character")
name("of 300 characters", "n" * 300, "100 characters")
name("with a dot at the end", "a.", "ends with a dot")
name("like an option", "-rf", "starts with")
name("empty", "", "is empty")


def group_key(what: str, settings: dict[str, object], says: str, **rest: Any) -> None:
    """A row: a setting of the group."""
    document(NAME, what, lambda m: m["model_groups"]["g"].update(settings), says, **rest)


for _what, _value in {
    "`..`": "../x",
    "a path": "a/b",
    "a backslash": "a\\b",
    "NUL": "a\0",
    "a look-alike letter": "\u0435_",
    "an absolute path": "/etc/x",
    "a drive letter": "C:x",
    "a UNC path": "\\\\server\\share",
    "a line break": "a\n",
    "400 characters": "p" * 400,
}.items():
    group_key(f"a prefix with {_what}", {"node_name_prefix": _value}, "node_name_prefix")
    group_key(
        f"an external initializer file with {_what}",
        {"external_initializers": {"file": _value}},
        "external_initializers",
    )
    group_key(
        f"a sharing group with {_what}",
        {"sharing_groups": {_value: ["a"]}},
        "sharing_groups",
    )
group_key("a sharing group `AUX`", {"sharing_groups": {"AUX": ["a"]}}, "is a device on Windows")
group_key(
    "an external initializer file `CON`", {"external_initializers": {"file": "CON"}}, "device"
)
group_key(
    "an external initializer file that is a path",
    {"external_initializers": {"file": "/etc/x"}},
    "external_initializers",
)
group_key(
    "an external initializer file named as the model is",
    {"external_initializers": {"file": "a_ctx.onnx"}},
    "a_ctx.onnx",
)
group_key(
    "an external initializer file named as the sums are",
    {"external_initializers": {"file": "SHA256SUMS"}},
    "SHA256SUMS",
)
group_key(
    "an external initializer file named as the sums are, but for case",
    {"external_initializers": {"file": "sha256sums"}},
    "sha256sums",
)


def _two_cases(m: dict[str, Any]) -> None:
    m["models"]["A"] = dict(m["models"]["a"])
    m["model_groups"]["g"]["models"] = ["a", "A"]


document(
    NAME, "two models that differ by case", _two_cases, "which some systems take for a_ctx.onnx"
)
document(
    NAME,
    "two groups that differ by case",
    lambda m: m["model_groups"].update(G=dict(m["model_groups"]["g"])),
    "differs only by case",
)
document(
    NAME,
    "two targets that differ by case",
    lambda m: m.update(targets={"t": {}, "T": {}}),
    "differs only by case",
)
