import hashlib

import msgspec
import pytest

from epctx import codec
from epctx.files import digest


def test_canonical_json_knows_no_order_of_keys_and_no_nan() -> None:
    assert digest.canonical_json({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'.encode()
    assert digest.of_json({"b": 1, "a": 2}) == digest.of_json({"a": 2, "b": 1})
    assert digest.of_json([1, 2]) != digest.of_json([2, 1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest.canonical_json(float("nan"))


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "../" * 21 + "x", "0" * 63 + "\n"]
)
def test_what_is_no_digest_is_none_however_it_comes(text: str) -> None:
    """In a record of the cache `../../x` would be a path out of it."""
    with pytest.raises(ValueError, match="is not a digest"):
        digest.Digest("blake3", text)
    with pytest.raises(msgspec.ValidationError, match="is not a digest"):
        codec.decode(codec.encode({"algorithm": "blake3", "hex": text}), digest.Digest)


def test_that_of_a_folder_is_of_a_line_a_file_sorted_by_path() -> None:
    files = {name: digest.of_bytes(name.encode(), "sha256") for name in ("b", "a/z", "a.txt", "é")}
    lines = [
        f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
        for name in ("a.txt", "a/z", "b", "é")
    ]
    assert digest.of_folder(files).hex == hashlib.sha256("".join(lines).encode()).hexdigest()
