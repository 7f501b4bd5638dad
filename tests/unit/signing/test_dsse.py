import sys

import pytest

from epctx.errors import UsageError
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


def test_without_cryptography_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(UsageError, match="not installed, cryptography") as caught:
        dsse.require("sign")
    assert caught.value.remedy == 'pip install "epctx[sign]"'
