from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx.lockfile.differences import between_locks, causes_between
from epctx.lockfile.types import Lock, LockedFile, LockedSource, LockedToolchain

QNN = "QNNExecutionProvider"


def told(old: Lock, new: Lock) -> list[tuple[str, str]]:
    return [(difference.kind, str(difference)) for difference in between_locks(old, new)]


def group(lock: Lock, **changes: Any) -> Lock:
    edited = replace(lock.groups["default/llm"], **changes)
    return replace(lock, groups={"default/llm": edited})


def session(lock: Lock, **changes: Any) -> Lock:
    old = lock.groups["default/llm"].session_groups["prefill"]
    return group(lock, session_groups={"prefill": replace(old, **changes)})


def outputs(lock: Lock, **changes: LockedFile | None) -> Lock:
    files = lock.groups["default/llm"].outputs | changes
    return session(lock, outputs={name: file for name, file in files.items() if file is not None})


def ep(lock: Lock, **changes: Any) -> Lock:
    edited = replace(lock.execution_providers[QNN], **changes)
    return replace(lock, execution_providers={QNN: edited})


def test_other_code_of_the_same_epctx_is_a_difference_if_bytes_are(lock: Lock) -> None:
    toolchain = {**lock.toolchain, "epctx/compile": "blake3:0"}
    new = replace(ep(lock, code="epctx blake3:2"), toolchain=toolchain)
    new = session(new, key="blake3:0")
    assert told(lock, new) == []
    file = LockedFile(sha256="9" * 64, size=20)
    assert told(lock, outputs(new, **{"decode_ctx.onnx": file})) == [
        ("code", "toolchain: epctx/compile has changed"),
        ("code", f"{QNN}: its code has changed"),
        ("output", "default/llm/decode_ctx.onnx: has other content of the same size, 20 bytes"),
    ]


def test_another_ep_package_and_library(lock: Lock) -> None:
    toolchain = {"onnxruntime-qnn": "2.8.0", "onnxruntime-qnn/libQnnHtp.so": "blake3:0"}
    assert told(lock, ep(lock, toolchain=toolchain)) == [
        ("toolchain", f'{QNN}: onnxruntime-qnn: "2.7.0" is now "2.8.0"'),
        ("toolchain", f"{QNN}: onnxruntime-qnn/libQnnHtp.so has changed"),
    ]
    assert told(lock, ep(lock, code="other 1 blake3:0")) == [
        ("toolchain", f"{QNN}: its code has changed")
    ]


def test_an_ep_that_is_new_or_gone(lock: Lock) -> None:
    other = LockedToolchain(code="x", host={}, toolchain={})
    new = replace(lock, execution_providers={"Other": other})
    assert told(lock, new) == [
        ("toolchain", "Other: is used now"),
        ("toolchain", f"{QNN}: is no longer used"),
    ]


def test_a_host_that_the_bytes_depend_on_is_no_broken_build(lock: Lock) -> None:
    here, there = ep(lock, host={"isa": "avx2"}), ep(lock, host={"isa": "avx512"})
    assert told(here, there) == [
        ("host", f'{QNN}: made on another host: isa: "avx2" is now "avx512"')
    ]


def test_sources_that_grew_that_are_new_that_are_gone(lock: Lock) -> None:
    new = replace(
        lock,
        sources={
            "models/tiny.onnx": LockedSource(digest="blake3:0", size=8),
            "models/b.data": LockedSource(digest="blake3:1", size=1),
        },
    )
    assert [what for _, what in told(lock, new)] == [
        "models/b.data: is a new source",
        "models/tiny.data: is no longer a source",
        "models/tiny.onnx: has other content: 7 bytes are now 8",
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"embed_mode": 1}, "embed_mode: 0 is now 1"),
        ({"node_name_prefix": "p_"}, 'node_name_prefix: "" is now "p_"'),
        ({"optimize": "none"}, 'optimize: "basic" is now "none"'),
        ({"passes": ("simplify",)}, 'passes[0]: "simplify" is new'),
        ({"session_options": {}}, 'session_options.session.x: "1" is gone'),
    ],
)
def test_settings(lock: Lock, changes: dict[str, object], what: str) -> None:
    assert told(lock, group(lock, **changes)) == [("setting", f"default/llm: {what}")]


def test_the_order_in_a_sharing_group(lock: Lock) -> None:
    assert told(lock, session(lock, models=("decode", "prefill"))) == [
        ("setting", 'default/llm: session groups.prefill.models[0]: "prefill" is now "decode"'),
        ("setting", 'default/llm: session groups.prefill.models[1]: "decode" is now "prefill"'),
    ]


def test_a_group_that_is_new_or_gone(lock: Lock) -> None:
    new = replace(lock, groups={"default/eye": lock.groups["default/llm"]})
    assert told(lock, new) == [
        ("setting", "default/eye: is built now"),
        ("setting", "default/llm: is no longer built"),
    ]


def test_outputs(lock: Lock) -> None:
    new = outputs(
        lock,
        **{
            "decode_ctx.onnx": LockedFile(sha256="9" * 64, size=20),
            "prefill_ctx.onnx": LockedFile(sha256="9" * 64, size=11),
            "prefill_qnn.bin": None,
            "more.data": LockedFile(sha256="9" * 64, size=1),
        },
    )
    assert told(lock, new) == [
        ("output", "default/llm/decode_ctx.onnx: has other content of the same size, 20 bytes"),
        ("output", "default/llm/more.data: is a new output"),
        ("output", "default/llm/prefill_ctx.onnx: 10 bytes are now 11"),
        ("output", "default/llm/prefill_qnn.bin: is no longer an output"),
    ]
    assert causes_between(lock, new) == ()


def test_keys_are_told_only_where_no_cause_is(lock: Lock) -> None:
    new = session(lock, key="blake3:0")
    assert told(lock, new) == [("key", "default/llm: the key of session group prefill has changed")]
    both = replace(new, toolchain={**lock.toolchain, "onnxruntime": "2"})
    assert [kind for kind, _ in told(lock, both)] == ["toolchain"]


def test_causes_come_before_outputs(lock: Lock) -> None:
    changed = outputs(lock, **{"decode_ctx.onnx": LockedFile(sha256="9" * 64, size=21)})
    new = replace(changed, toolchain={**lock.toolchain, "onnxruntime": "2"})
    assert [kind for kind, _ in told(lock, new)] == ["toolchain", "output"]


def test_another_file_of_a_package_is_told(lock: Lock) -> None:
    assert lock.package is not None
    (variant,) = lock.package.variants
    other = replace(variant, files={"readme.txt": LockedFile(sha256="8" * 64, size=60)})
    new = replace(lock, package=replace(lock.package, variants=(other,), version="2"))
    assert [what for _, what in told(lock, new)] == [
        'package: version: "1.2.0" is now "2"',
        f'package: variants.default/llm.files.readme.txt.sha256: "{"6" * 64}" is now "{"8" * 64}"',
    ]


def leaves(value: object, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from leaves(child, *path, key)
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from leaves(child, *path, index)
    else:
        yield path


def edited(value: object) -> object:
    """Another value that has the same place."""
    match value:
        case bool():
            return not value
        case int():
            return 1 - value if value in (0, 1) else value + 1
        case str():
            return "extended" if value == "basic" else f"{value}x"
        case dict():
            return {"new": "blake3:0"}
        case list():
            return ["new"]
        case None:
            return 7
    raise TypeError(value)


APART = {
    "code", "epctx/compile", "cpus", "cpu", "golden", "hosts", "name", "lock_version", "oci",
    "sharing",
}  # fmt: skip
"""Names, what tells where a binary was made, what is released beside what was built, what is of
other kinds of host, and what matters only if bytes differ."""


def test_every_field_that_can_matter_is_compared(lock: Lock) -> None:
    document = msgspec.json.decode(msgspec.json.encode(lock))
    tried = set()
    for path in leaves(document):
        changed = copy.deepcopy(document)
        place = changed
        for step in path[:-1]:
            place = place[step]
        value = place[path[-1]]
        place[path[-1]] = 0.5 if isinstance(value, float) else edited(value)
        form = path in (("lock_version",), ("hosts",))
        new = lock if form else msgspec.convert(changed, Lock)
        assert bool(told(lock, new)) is not bool(APART & set(path)), path
        tried.add(path)
    assert len(tried) > 40
