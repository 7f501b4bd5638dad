"""Shared assets: folders that are named by what is in them."""

from epctx.commands.package import assets
from epctx.files.digest import Digest


def test_an_asset_is_known_by_64_lowercase_digits_alone() -> None:
    good = Digest("sha256", "0f" * 32)
    assert assets.folder(good) == f"shared_assets/sha256-{good.hex}"
    assert assets.REFERENCE.fullmatch(str(good))
    for text in (f"sha256:{good.hex.upper()}", f"sha256:{good.hex[:-1]}", f"sha512:{good.hex}"):
        assert not assets.REFERENCE.fullmatch(text)
