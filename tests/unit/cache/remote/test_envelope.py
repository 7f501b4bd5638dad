import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctx import codec
from epctx.cache.action import Signature, StoredAction, StoredFile
from epctx.cache.remote import envelope
from epctx.cache.store import Cache
from epctx.files import digest
from tests.kit.vouching import KEY, RECORD, action

FILE = StoredFile(name="a", size=1, digest=digest.of_bytes(b"a"))
SIGNED = replace(action((FILE,)), signatures=(Signature(keyid="ci-1", sig="AAAA"),))


def test_the_preauthentication_encoding_is_that_of_dsse() -> None:
    # https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, with this payload's type.
    kind = b"application/vnd.epctx.action+json"
    assert envelope.signed(b"hello world") == b"DSSEv1 33 " + kind + b" 11 hello world"


def test_what_is_sealed_is_unsealed() -> None:
    again = envelope.unseal(KEY, envelope.seal(KEY, SIGNED))
    assert again == replace(SIGNED, fetched=True)
    assert envelope.payload(KEY, again) == envelope.payload(KEY, SIGNED)


def test_an_envelope_is_json_that_other_tools_read() -> None:
    sealed = json.loads(envelope.seal(KEY, SIGNED))
    assert sealed["payloadType"] == envelope.TYPE
    assert sealed["signatures"] == [{"keyid": "ci-1", "sig": "AAAA"}]
    payload = json.loads(base64.b64decode(sealed["payload"]))
    assert list(payload) == ["version", "key", "kind", "record", "result", "files"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(result=JSON, indent=st.sampled_from([None, 2]))
def test_a_payload_is_made_again_from_the_local_record(result: object, indent: int | None) -> None:
    """Byte for byte, however what was signed was written."""
    written = json.dumps(result, indent=indent, allow_nan=False, ensure_ascii=True).encode()
    made = replace(SIGNED, result=msgspec.Raw(written))
    kept = codec.decode(codec.encode(made), StoredAction[msgspec.Raw])
    assert envelope.payload(KEY, kept) == envelope.payload(KEY, made)


def test_the_cache_keeps_what_was_signed(cache: Cache) -> None:
    result = msgspec.Raw(b'{"a": [1.0,  2e3], "\\u00e9": "\xc3\xa9"}')
    made = replace(SIGNED, result=result)
    cache.records.write("actions", KEY.hex, made)
    kept = cache.records.read("actions", KEY.hex, StoredAction[msgspec.Raw])
    assert kept is not None
    assert envelope.payload(KEY, kept) == envelope.payload(KEY, made)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The envelope, with another payload; nothing else of it is looked at here."""
    sealed = json.loads(envelope.seal(KEY, SIGNED))
    told = json.loads(base64.b64decode(sealed["payload"]))
    change(told)
    content = json.dumps(told, separators=(",", ":")).encode()
    return json.dumps(sealed | {"payload": base64.b64encode(content).decode()}).encode()


def named(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda told: told.update(files=[told["files"][0] | {"name": name} for name in names])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        envelope.seal(KEY, replace(SIGNED, signatures=())),
        envelope.seal(KEY, replace(SIGNED, signatures=SIGNED.signatures * 17)),
        envelope.seal(KEY, SIGNED).replace(b"vnd.epctx", b"vnd.other"),
        envelope.seal(KEY, SIGNED).replace(b'"payload":"', b'"payload":"\\u00e9'),
        envelope.seal(digest.of_bytes(b"x"), SIGNED),
        changed(lambda told: told.update(version=2)),
        changed(lambda told: told.update(version=0)),
        changed(lambda told: told.update(more=1)),
        changed(lambda told: told.update(record={"v": 2})),
        changed(lambda told: told.update(key=str(digest.of_bytes(b"x")))),
        changed(lambda told: told.update(kind="an other")),
        changed(named("../a")),
        changed(named("/a")),
        changed(named("C:a")),
        changed(named("a\\b")),
        changed(named("a", "A")),
        changed(named(*(str(n) for n in range(10_001)))),
        changed(lambda told: told["files"][0].update(size=-1)),
        changed(lambda told: told["files"][0].update(size=1 << 60)),
        changed(lambda told: told["files"][0]["digest"].update(algorithm="sha256")),
        changed(lambda told: told["files"][0]["digest"].update(hex="../../x")),
    ],
)
def test_what_is_not_as_it_must_be_is_damaged(content: bytes) -> None:
    with pytest.raises(envelope.Damaged):
        envelope.unseal(KEY, content)


def test_a_payload_that_is_written_otherwise_is_damaged() -> None:
    assert envelope.unseal(KEY, changed(lambda told: None)).files == (FILE,)
    sealed = json.loads(envelope.seal(KEY, SIGNED))
    spaced = base64.b64decode(sealed["payload"]).replace(b'"kind":', b'"kind": ')
    sealed["payload"] = base64.b64encode(spaced).decode()
    with pytest.raises(envelope.Damaged, match="not written"):
        envelope.unseal(KEY, json.dumps(sealed).encode())


def test_the_record_is_that_of_the_key() -> None:
    assert SIGNED.record == RECORD
    with pytest.raises(envelope.Damaged, match="another key"):
        envelope.unseal(KEY, envelope.seal(KEY, replace(SIGNED, record=msgspec.Raw(b'{"v":2}'))))
