"""The canonical hash of a folder: what ONNX Runtime's own tools compute."""

import hashlib

from epctx.commands.package import assets
from epctx.files import digest
from epctx.files.digest import Digest


def test_it_is_that_of_a_line_a_file_sorted_by_path() -> None:
    files = {name: digest.of_bytes(name.encode(), "sha256") for name in ("b", "a/z", "a.txt", "é")}
    lines = [
        f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
        for name in ("a.txt", "a/z", "b", "é")
    ]
    assert assets.of_files(files).hex == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_an_asset_is_known_by_64_lowercase_digits_alone() -> None:
    good = Digest("sha256", "0f" * 32)
    assert assets.folder(good) == f"shared_assets/sha256-{good.hex}"
    assert assets.REFERENCE.fullmatch(str(good))
    for text in (f"sha256:{good.hex.upper()}", f"sha256:{good.hex[:-1]}", f"sha512:{good.hex}"):
        assert not assets.REFERENCE.fullmatch(text)
