import pytest

from epctx.signing import dsse


def test_the_encoding_is_that_of_the_specification() -> None:
    """Its own test vector."""
    kind = "http://example.com/HelloWorld"
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.pae(kind, b"hello world") == expected


def test_base64_is_strict() -> None:
    assert dsse.decoded("YQ==") == b"a"
    for text in ("YQ", "Y Q==", "YQ==\n", "é"):
        with pytest.raises(ValueError):
            dsse.decoded(text)
