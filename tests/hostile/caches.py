"""The cache, the outputs' folder and the lock, made by somebody who means no good.

Whatever is done to the cache, a build makes the bytes that a build without it makes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import msgspec

from tests.hostile import project
from tests.hostile.table import BUILD, Room, add

CACHE, DIST, LOCK = "the cache", "the outputs' folder", "the lock"


def same(room: Room) -> None:
    """What was published is what a build without a cache publishes."""
    made = room.folder / "dist" / "m" / "default" / "g"
    right = project.built() / "dist" / "m" / "default" / "g"
    for path in right.iterdir():
        assert (made / path.name).read_bytes() == path.read_bytes(), path.name


def cached(
    name: str, spoil: Callable[[Path, Room], object], says: str = "verified", **rest: Any
) -> None:
    """A row: the cache of a build of the same project is spoilt; `spoil` gets its `v1` folder."""

    def make(room: Room) -> None:
        project.fill_cache(room)
        spoil(room.cache / "v2", room)

    options: dict[str, Any] = {"code": 0, "posix": True, **rest}
    if options["code"] == 0 and "command" not in rest:
        options["after"] = same
    add(CACHE, name, make, says=says, **options)


def all_of(root: Path, kind: str) -> list[Path]:
    """Every object, or every record of a kind."""
    return sorted(path for path in (root / kind).glob("??/*"))


def each(kind: str, change: Callable[[Path], object]) -> Callable[[Path, Room], None]:
    """Do something to every entry of a kind."""

    def spoil(root: Path, room: Room) -> None:
        for path in all_of(root, kind):
            path.chmod(0o644)
            change(path)

    return spoil


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something else in an entry's place."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def flip(path: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


for _kind in ("objects", "actions", "digests", "groups"):
    cached(f"{_kind}: a flipped byte in each", each(_kind, flip))
    cached(f"{_kind}: each empty", each(_kind, lambda path: path.write_bytes(b"")))
    cached(f"{_kind}: each missing", each(_kind, Path.unlink))
    cached(f"{_kind}: each a FIFO", each(_kind, replaced(os.mkfifo)))
    cached(f"{_kind}: each a folder", each(_kind, replaced(Path.mkdir)))
    cached(f"{_kind}: each a dangling link", each(_kind, replaced(lambda p: p.symlink_to("no"))))
    cached(
        f"{_kind}: each a link to /dev/zero",
        each(_kind, replaced(lambda p: p.symlink_to("/dev/zero"))),
    )
cached("objects: bytes appended", each("objects", lambda p: p.write_bytes(p.read_bytes() + b"x")))


def _linked(root: Path, room: Room) -> None:
    for path in all_of(root, "objects"):
        target = room.outside / path.name
        shutil.move(path, target)
        path.symlink_to(target)


def signed(root: Path, kind: str, name: str, payload: bytes) -> None:
    """A record with a right sum: what anybody can write who can write to the folder."""
    total = blake3.blake3(f"{kind}/{name}\n".encode() + payload).hexdigest()
    place = root / kind / name[:2] / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(total.encode() + b"\n" + payload)


def forged(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Room], None]:
    """Change every action record, and sign it anew."""

    def spoil(root: Path, room: Room) -> None:
        for path in all_of(root, "actions"):
            action = msgspec.json.decode(path.read_bytes()[65:])
            change(action)
            signed(root, "actions", path.name, msgspec.json.encode(action))

    return spoil


def rename(name: str) -> Callable[[dict[str, Any]], None]:
    """An output of another name."""

    def change(action: dict[str, Any]) -> None:
        for file in action["files"][:1]:
            file["name"] = name

    return change


cached("objects: each a link to a file elsewhere, with its bytes", _linked, leaves=("*",))


for _what, _name in {
    "`..`": "../../../../outside/planted",
    "an absolute path": "/tmp/epctx-planted",
    "a backslash": "..\\planted",
    "a drive letter": "C:planted",
    "NUL": "a\0b",
    "nothing": "",
    "the folder": ".",
}.items():
    cached(f"actions: an output named with {_what}", forged(rename(_name)))


def told(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Room], None]:
    """Change what the compile told, and sign it anew."""

    def of_compile(action: dict[str, Any]) -> None:
        if action["kind"] == "compile":
            change(action["result"])

    return forged(of_compile)


def outside(action: dict[str, Any]) -> None:
    """An object whose place in `objects` would be the file outside."""
    for file in action["files"]:
        file["digest"]["hex"] = "../../outside/secret"


cached("actions: an object that is a path outside", forged(outside))


def _output_named(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda result: result["output"]["files"][0].update(name=name)


for _what, _name in {
    "`..`": "../../../../outside/planted",
    "an absolute path": "/tmp/epctx-planted",
    "NUL": "a\0b",
    "another one": "b_reference.bin",
}.items():
    cached(
        f"actions: a result whose output is named with {_what}",
        told(_output_named(_name)),
    )
cached("actions: a result of another model", told(lambda r: r["models"][0].update(name="../../b")))
cached(
    "actions: a result of an EP that is not there",
    told(lambda r: r["models"][0]["partitions"][0].update(provider="99")),
)
cached(
    "actions: a result without a model of its own",
    told(lambda r: r["output"].update(models={"a": "b_ctx.onnx"})),
)
cached("actions: outputs of one name", forged(lambda a: a.update(files=a["files"] * 2)))
cached("actions: no outputs", forged(lambda a: a.update(files=[])))
cached(
    "actions: outputs of a negative size",
    forged(lambda a: [f.update(size=-1) for f in a["files"]]),
)
cached("actions: the record of another key", forged(lambda a: a.update(record={"action": "x"})))
cached("actions: a result of another form", forged(lambda a: a.update(result=[1, 2, 3])))
cached("actions: of another kind", forged(lambda a: a.update(kind="verify")))


def _deep(root: Path, room: Room) -> None:
    for kind in ("actions", "digests", "groups"):
        for path in all_of(root, kind):
            signed(root, kind, path.name, b"[" * 100_000 + b"]" * 100_000)


def _swapped(root: Path, room: Room) -> None:
    paths = all_of(root, "actions")
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def _locks_linked(root: Path, room: Room) -> None:
    for path in _unlocked(root):
        _link(path, room.outside / "secret")


def _shared_on_purpose(root: Path, room: Room) -> None:
    root.chmod(0o777)
    room.environment.update(EPCTX_CACHE_SHARED="1")


def _a_file_instead(root: Path, room: Room) -> None:
    shutil.rmtree(root)
    root.write_bytes(b"")


def _moved(root: Path, room: Room) -> None:
    shutil.move(root, room.cache / "elsewhere")
    root.symlink_to("elsewhere")


def _huge(root: Path, room: Room) -> None:
    for path in all_of(root, "actions"):
        os.truncate(path, 1 << 40)


cached("records: JSON nested 100,000 deep, with right sums", _deep)
cached("actions: each in the place of another", _swapped)
cached("actions: each a sparse file of 1 TiB", _huge, seconds=60.0)
cached("users.db: something else", lambda root, room: (root / "users.db").write_bytes(b"x" * 9000))
cached(
    "users.db: a link out",
    lambda root, room: _link(root / "users.db", room.outside / "secret"),
    "the cache cannot be written",
    code=9,
)
cached(
    "users.db: a FIFO", lambda root, room: replaced(os.mkfifo)(root / "users.db"), "cache", code=9
)
cached(
    "a lock of an action: a link out",
    _locks_linked,
    "the cache cannot be written",
    code=9,
)
cached("temporary: a link out", lambda root, room: _temporary(root, room))
cached("files that epctx did not put there", lambda root, room: _junk(root))
cached(
    "writable by everybody",
    lambda root, room: root.chmod(0o777),
    "everybody can write to it",
    code=9,
)
cached(
    "writable by everybody, and said to be shared",
    _shared_on_purpose,
)
cached(
    "of another user",
    lambda root, room: os.chown(root, 54321, 54321),
    "it belongs to another user",
    code=9,
)
cached(
    "a file in the folder's place",
    _a_file_instead,
    "the cache cannot be written",
    code=9,
)
cached(
    "the folder a link to a folder of the user's",
    _moved,
)
for _command in ("info", "verify", "gc"):
    cached(
        f"files that epctx did not put there, `cache {_command}`",
        lambda root, room: _junk(root),
        "",
        command=("cache", _command),
        **({"code": 9} if _command == "verify" else {}),
    )
    cached(
        f"each object and record a FIFO, `cache {_command}`",
        lambda root, room: [
            each(kind, replaced(os.mkfifo))(root, room) for kind in ("objects", "actions")
        ],
        "",
        command=("cache", _command),
        **({"code": 9} if _command == "verify" else {}),
    )


def noted(what: str, make: Callable[[Path], object], **rest: Any) -> None:
    """A row: what is remembered of a manifest's groups, by which none of them is looked at."""

    def spoil(root: Path, room: Room) -> None:
        for path in all_of(root, "groups"):
            path.unlink()
            make(path)

    cached(f"what is remembered of a manifest's groups: {what}", spoil, how="process", **rest)


def _deep_note(path: Path) -> None:
    payload = b"[" * 100_000 + b"]" * 100_000
    signed(path.parents[2], "groups", path.name, payload)


noted("a FIFO", os.mkfifo)
noted("a folder", Path.mkdir)
noted("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"))
noted("JSON nested 100,000 deep, with a right sum", _deep_note)


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _unlocked(root: Path) -> list[Path]:
    """The locks; the actions are gone, so that they are taken."""
    for path in all_of(root, "actions"):
        path.unlink()
    return list((root / "locks").iterdir())


def _temporary(root: Path, room: Room) -> None:
    shutil.rmtree(root / "temporary", ignore_errors=True)
    (root / "temporary").mkdir()
    (root / "temporary" / "dead").symlink_to(room.outside)
    (root / "temporary" / "dead.lock").touch()
    for path in all_of(root, "actions"):
        path.unlink()


def _junk(root: Path) -> None:
    for kind in ("objects", "actions", "digests", "groups"):
        (root / kind).mkdir(exist_ok=True)
        (root / kind / "file").write_bytes(b"x")
        (root / kind / "zz").mkdir()
        (root / kind / "zz" / "not-hex").write_bytes(b"x")
        (root / kind / "link").symlink_to("/")
        (root / kind / "ab").mkdir(exist_ok=True)
        (root / kind / "ab" / ("ab" + "0" * 62)).mkdir(exist_ok=True)


# ------------------------------------------------------------------------------------- the outputs


def outputs(name: str, make: Callable[[Room], object], says: str, **rest: Any) -> None:
    """A row: what lies where outputs go."""
    options: dict[str, Any] = {"code": 0, "posix": True, **rest}
    if options["code"] == 0:
        options["after"] = same
    add(DIST, name, make, says=says, **options)


def _in_dist(room: Room, name: str) -> Path:
    path = room.folder / "dist" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _planted(room: Room) -> Path:
    """A folder outside that looks like what epctx published."""
    planted = room.outside / "default" / "old"
    planted.mkdir(parents=True)
    (planted / "SHA256SUMS").write_bytes(b"")
    return room.outside


def _linked_out(name: str) -> Callable[[Room], None]:
    return lambda room: _in_dist(room, name).symlink_to(_planted(room))


def _fifo(name: str) -> Callable[[Room], None]:
    return lambda room: os.mkfifo(_in_dist(room, name))


for _place in ("m", "m/default", "m/default/g", "m/other", "m.staging", "m.staging/old/default"):
    outputs(
        f"dist/{_place} is a link to a folder outside",
        _linked_out(_place),
        "is a link",
        code=9,
        leaves=("dist/*",),
    )
for _place in ("m", "m/default"):
    outputs(
        f"dist/{_place} is a FIFO",
        _fifo(_place),
        "dist/m/default/g: cannot be written",
        code=9,
    )
for _place in ("m.build.json", ".m.lock", "m/default/g", "m.staging"):
    outputs(
        f"dist/{_place} is a FIFO",
        _fifo(_place),
        "verified",
        leaves=("dist/*",),
    )
outputs(
    "the report is a link to a file outside",
    lambda room: _in_dist(room, "m.build.json").symlink_to(room.outside / "secret"),
    "verified",
)
outputs(
    "the lock of the outputs is a link to a file outside",
    lambda room: _in_dist(room, ".m.lock").symlink_to(room.outside / "secret"),
    "dist",
    code=9,
)
outputs(
    "dist/m.logs is a FIFO",
    lambda room: os.mkfifo(_in_dist(room, "m.logs")),
    "verified",
    leaves=("dist/*",),
)
outputs("dist is a file", lambda room: (room.folder / "dist").write_bytes(b""), "dist", code=2)


# ---------------------------------------------------------------------------------------- the lock


def lock(name: str, content: bytes | Callable[[], bytes], says: str, **rest: Any) -> None:
    """A row: `build --locked` with a lock of these bytes."""

    def make(room: Room) -> None:
        project.publish(room)
        (room.folder / "m.lock.yaml").write_bytes(
            content if isinstance(content, bytes) else content()
        )

    command = (*BUILD, "--locked")
    add(LOCK, name, make, says=says, **{"code": 8, "command": command, **rest})


def lock_file(name: str, make: Callable[[Path, Room], object], says: str, **rest: Any) -> None:
    """A row: something else is in the lock's place."""

    def put(room: Room) -> None:
        make(room.folder / "m.lock.yaml", room)

    add(LOCK, name, put, says=says, **{"code": 8, "posix": True, **rest})


def entry(name: str, old: str, new: str, says: str) -> None:
    """A row: an entry of the lock of a build is another text."""

    def make(room: Room) -> None:
        project.publish(room)
        path = room.folder / "m.lock.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    for command in ((*BUILD, "--locked"), ("verify", "dist/m", "--lock", "m.lock.yaml")):
        add(LOCK, f"{name}, `{command[0]}`", make, says=says, code=8, command=command)


entry("the name a path", "name: m\n", "name: ../m\n", "the name has the character")
entry("the name of 5000 characters", "name: m\n", f"name: {'m' * 5000}\n", "the name is longer")
entry("a target with `..`", "default/g:", "../g:", "a target or group starts with")
entry("a group that is a path", "default/g:", "default/g/../../x:", "has the character")
entry("a reserved name of Windows", "default/g:", "default/NUL:", "is a device on Windows")
entry("a digest that is none", "sha256: ", "sha256: z", "is not a digest")
_LOCKED = {"command": (*BUILD, "--locked")}
lock("empty", b"", "m.lock.yaml")
lock("not UTF-8", b"\xff\xfe\x00", "m.lock.yaml")
lock("not YAML", b"a: [", "m.lock.yaml")
lock("marks of a merge", b"<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> x\n", "merge conflict")
lock("of a newer version", b"lock_version: 99", "lock_version 99")
lock("without a version", b"name: m", "lock_version None")
lock("of another form", b"lock_version: 1\nname: 7", "is not a lock")
lock("a billion laughs", b"a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]", "it has the anchor")
lock("nested 100,000 deep", b"[" * 100_000, "nested deeper")
lock("a duplicate key", b"lock_version: 1\nlock_version: 1", "twice")
lock("a tag that makes an object", b"name: !!python/object/apply:os.system [id]", "m.lock.yaml")
lock("a number of 10,000 digits", b"lock_version: " + b"9" * 10_000, "m.lock.yaml")
lock("a date that is none", b"name: 2026-99-99", "m.lock.yaml")
lock("a list as key", b"? [a]\n: 1", "m.lock.yaml")
lock("65 MiB", lambda: b"#" * (65 << 20), "is larger than 64 MiB")
lock_file("a FIFO, --locked", lambda path, room: os.mkfifo(path), "m.lock.yaml", **_LOCKED)
lock_file("a folder, --locked", lambda path, room: path.mkdir(), "m.lock.yaml", **_LOCKED)
lock_file(
    "a link to /dev/zero, --locked",
    lambda path, room: path.symlink_to("/dev/zero"),
    "m.lock.yaml",
    **_LOCKED,
)
lock_file(
    "a link to a file outside, when it is written",
    lambda path, room: path.symlink_to(room.outside / "secret"),
    "is not a lock",
)
lock_file("a FIFO, when it is written", lambda path, room: os.mkfifo(path), "is its place")
lock_file("a folder, when it is written", lambda path, room: path.mkdir(), "is its place")
