import msgspec

from epctx import codec
from epctx.cache.action import StoredAction, key_of
from epctx.files import digest


def test_a_key_is_the_digest_of_its_record_however_that_is_written() -> None:
    key = digest.of_json({"a": 1, "b": [2]})
    assert key_of(msgspec.Raw(b'{"b": [2],\n "a": 1}')) == key


def test_a_record_of_no_key_has_none() -> None:
    for content in (b"{", b"", b"[" * 100_000, b'{"a": "\xa4"}'):
        assert key_of(msgspec.Raw(content)) is None


def test_a_record_of_before_signatures_is_read() -> None:
    old = b'{"kind":"compile","record":{"v":1},"result":1,"files":[]}'
    found = codec.decode(old, StoredAction[int])
    assert (found.signatures, found.fetched) == ((), False)
