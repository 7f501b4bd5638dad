"""Lock file: format, refusals, and the files that it lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from epctx import lockfile as locks
from epctx.errors import LockError
from epctx.lockfile.types import Lock
from epctx.parsing.schema import providers


def test_a_lock_fits_its_schema(lock: Lock) -> None:
    import yaml

    schema = json.loads(providers.read_schema("lock"))
    jsonschema.Draft202012Validator.check_schema(schema)
    document = yaml.safe_load(locks.text(lock))
    jsonschema.Draft202012Validator(schema).validate(document)


def test_the_schema_knows_each_field_and_no_other(lock: Lock) -> None:
    """Drift between the types and the schema fails here."""
    import msgspec

    (generated,), definitions = msgspec.json.schema_components([Lock])
    schema = json.loads(providers.read_schema("lock"))
    for name, definition in definitions.items():
        mine = schema if name == "Lock" else schema["$defs"][name]
        assert set(mine["properties"]) == set(definition["properties"]), name
        # Absent where there are none.
        absent = {
            "Lock": {"compositions", "golden", "hosts", "oci", "package", "ranges"},
            "LockedGroup": {"asked_pieces", "pieces", "quantize"},
            "LockedModel": {"calibration", "quantized"},
            "Pieces": {"at", "count", "max_memory"},
        }.get(name, set())
        assert set(mine["required"]) == set(definition["properties"]) - absent, name
        assert mine["additionalProperties"] is False, name
        assert definition["additionalProperties"] is False, name
    assert set(schema["$defs"]) - {"blake3", "sha256"} == set(definitions) - {"Lock"}
    assert generated == {"$ref": "#/$defs/Lock"}


def test_the_actions_that_a_lock_reaches(lock: Lock) -> None:
    assert locks.action_names(lock) == {"a" * 64, "c" * 64}


def test_one_changed_output_is_one_changed_line(lock: Lock) -> None:
    before = locks.text(lock).splitlines()
    group = lock.groups["default/llm"]
    session = group.session_groups["prefill"]
    edited = replace(session.outputs["prefill_ctx.onnx"], sha256="4" * 64)
    session = replace(session, outputs={**session.outputs, "prefill_ctx.onnx": edited})
    group = replace(group, session_groups={"prefill": session})
    after = locks.text(replace(lock, groups={"default/llm": group})).splitlines()
    assert len(before) == len(after)
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert [line.strip() for line in changed] == [f'sha256: "{"4" * 64}"']


def refusal(content: str | bytes) -> LockError:
    data = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(LockError) as caught:
        locks.parse(data, where="x.lock.yaml")
    return caught.value


def test_a_newer_lock_asks_for_an_update(lock: Lock) -> None:
    error = refusal(locks.text(lock).replace("lock_version: 1", "lock_version: 3"))
    assert error.what == "has lock_version 3, this epctx reads 1, 2"
    assert error.remedy.startswith("update epctx, or ")


@pytest.mark.parametrize("version", ["lock_version: one", "lock_version: 0", ""])
def test_a_version_that_never_was(lock: Lock, version: str) -> None:
    error = refusal(locks.text(lock).replace("lock_version: 1", version))
    assert "has lock_version" in error.what
    assert "epctx build" in error.remedy


def test_a_merge_in_it_is_told_with_its_line(lock: Lock) -> None:
    lines = locks.text(lock).splitlines()
    error = refusal("\n".join([*lines[:3], "<<<<<<< ours", *lines[3:]]))
    assert error.where is not None and error.where.startswith("x.lock.yaml:")
    assert "take either side" in error.remedy


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xff\xfe", "is not valid YAML"),
        ("- 1\n", "is not a lock"),
        ("", "is not a lock"),
        ("lock_version: 1\n", "is not a lock"),
        ("a: 1\na: 2\n", "is not valid YAML"),
        ("a: &x [1]\nb: *x\n", "is not valid YAML"),
        ("a: &x [*x]\n", "is not valid YAML"),
        ("[" * 100_000, "is not valid YAML"),
        ("a: !!python/object:os.system {}\n", "is not valid YAML"),
    ],
)
def test_what_is_no_lock(content: str | bytes, what: str) -> None:
    assert refusal(content).what == what


def test_a_key_that_is_there_twice_is_named() -> None:
    error = refusal("name: a\nb: 1\nname: c\n")
    assert error.why == "it has the key 'name' twice"
    assert error.where == "x.lock.yaml:3:1"


@pytest.mark.parametrize(
    ("content", "why", "where"),
    [
        ("a: 1\n---\nb: 2\n", "a second document starts", "x.lock.yaml:3:1"),
        ("b: *x\n", "it has the alias 'x', which no lock has", "x.lock.yaml:1:4"),
        ("a: &x 1\n", "it has the anchor 'x', which no lock has", "x.lock.yaml:1:4"),
        ("&x a: 1\n", "it has the anchor 'x', which no lock has", "x.lock.yaml:1:1"),
        ("a: &x {b: 1}\n", "it has the anchor 'x', which no lock has", "x.lock.yaml:1:4"),
        ("!!str a: 1\n", "it has the tag 'tag:yaml.org,2002:str'", "x.lock.yaml:1:1"),
        ("a: !!str 1\n", "it has the tag 'tag:yaml.org,2002:str'", "x.lock.yaml:1:4"),
        ("[1]: 2\n", "it has a key that is not text", "x.lock.yaml:1:1"),
        ("[" * 17 + "]" * 17, "it is nested deeper than any lock", "x.lock.yaml:1:17"),
    ],
)
def test_what_no_lock_has_is_named_with_its_place(content: str, why: str, where: str) -> None:
    error = refusal(content)
    assert error.where == where and str(error.why).startswith(why)


@pytest.mark.parametrize("beside", ["lock_version", "embed_mode", "min_nodes", "optimized"])
@pytest.mark.parametrize("key", ["zzz", "x-mine", "<<"])
def test_an_unknown_key_is_refused_at_any_depth(lock: Lock, beside: str, key: str) -> None:
    line = re.compile(rf"^( *){beside}:", re.MULTILINE)
    text = line.sub(rf"\g<1>{key}: {{}}\n\g<0>", locks.text(lock), count=1)
    assert f"unknown field `{key}`" in str(refusal(text).why)


def test_the_deepest_lock_is_read() -> None:
    assert refusal("[" * 16 + "]" * 16).what == "is not a lock"


def test_scalars_are_those_of_a_manifest(lock: Lock) -> None:
    text = locks.text(lock).replace("name: tiny-llm", "name: no")
    assert locks.parse(text.encode(), where="x").name == "no"


def test_a_field_of_another_kind_is_named(lock: Lock) -> None:
    error = refusal(locks.text(lock).replace("size: 70", "size: large"))
    assert "`$.sources[...].size`" in str(error.why)


@pytest.mark.parametrize(
    ("said", "other", "why"),
    [
        (
            "default/llm:\n    golden.json",
            "default/x:\n    golden.json",
            "golden files of an unknown folder",
        ),
        ("golden.json:", '"../golden.json":', "is not a file name"),
        ("readme.txt:", "a/readme.txt:", "is not a file name"),
        ("vocab/a.txt:", "../a.txt:", "of an asset: it has `..`"),
        ("group: default/llm", "group: default/x", "does not fit any group"),
        ("        - decode\n", "", "does not fit any group"),
        (
            "- execution_providers:\n        - QNN",
            "- execution_providers:\n        - Q",
            "has no execution provider",
        ),
        ("5" * 64, "5", "is not a digest"),
        ("6" * 64, "6", "is not a digest"),
        ("7" * 64, "7", "is not a digest"),
    ],
)
def test_what_a_package_or_golden_files_cannot_be(
    lock: Lock, said: str, other: str, why: str
) -> None:
    text = locks.text(lock)
    place = text.rindex(said) if said.startswith(" ") else text.index(said)
    assert why in str(refusal(text[:place] + other + text[place + len(said) :]).why)


def test_a_missing_lock(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="there is no lock") as caught:
        locks.read(tmp_path / "m.lock.yaml")
    assert caught.value.exit_code == 8
    with pytest.raises(LockError, match="cannot be read"):
        locks.read(tmp_path)
