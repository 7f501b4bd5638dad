"""What an object store's client raises, in words of ours, and what is asked for of a large blob.

Real servers: tests/integration/test_stores.py.
"""

from collections.abc import Iterator

import obstore
import pytest
from obstore.exceptions import BaseError

from epctx.cache.remote import objects
from epctx.cache.remote.objects import ObjectStore
from epctx.transfer.attempts import StoreError

NAME = f"v1/objects/{'a' * 64}"


class _Found:
    def __init__(self, content: bytes, start: int, end: int) -> None:
        self.meta = {"size": len(content)}
        self._content = content[start:end]

    def stream(self, *, min_chunk_size: int) -> Iterator[bytes]:
        yield self._content


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(objects, "_PART", 10)
    return ObjectStore("s3://bucket/prefix", allow_http=False)


def test_parts_come_in_order_and_few_are_on_their_way(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, asked = bytes(range(105)), list[int]()

    def get(_: object, name: str, *, options: dict[str, tuple[int, int]]) -> _Found:
        asked.append(options["range"][0])
        return _Found(content, *options["range"])

    monkeypatch.setattr(obstore, "get", get)
    stream = store.stream(NAME, 105)
    assert stream is not None and asked == [0]
    assert next(stream) == content[:10] and asked == [0]
    assert next(stream) == content[10:20]
    assert len(asked) <= 5
    assert b"".join(stream) == content[20:]
    assert sorted(asked) == [*range(0, 105, 10)]


@pytest.mark.parametrize(
    ("text", "told", "lasting"),
    [
        ("x non-2xx status code: 503 Service Unavailable: <K>SECRET</K>", "it answers 503", False),
        ("HTTP error: source: ConnectionRefused SECRET", "the connection was refused", False),
        ("token request to http://169.254.169.254/SECRET", "no credentials", True),
        (
            "PUT http://169.254.169.254/x - Server returned non-2xx status code: 403",
            "no cred",
            True,
        ),
        ("GET http://host/x - non-2xx status code: 500 X: 169.254.169.254", "answers 500", False),
        ("SECRET", "cannot be reached", False),
    ],
)
def test_no_word_of_the_client_is_told(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, text: str, told: str, lasting: bool
) -> None:
    def get(*of: object, **more: object) -> None:
        raise BaseError(text)

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(StoreError) as error:
        store.read(NAME, 10)
    assert told in str(error.value) and error.value.lasting is lasting
    assert "SECRET" not in str(error.value) and error.value.__cause__ is None


def test_a_bucket_that_is_not_there_is_no_miss(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(*of: object, **more: object) -> None:
        raise FileNotFoundError("404 <Code>NoSuchBucket</Code>")

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(StoreError, match="no such bucket") as error:
        store.stream(NAME, 10)
    assert error.value.lasting
