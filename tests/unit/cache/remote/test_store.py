"""Names of blobs."""

import pytest

from epctx.cache.remote.store import checked, is_name
from epctx.transfer.attempts import StoreError


@pytest.mark.parametrize("kind", ["objects", "actions"])
def test_names(kind: str) -> None:
    assert checked(f"v1/{kind}/{'0123456789abcdef' * 4}").startswith("v1/")


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"v2/objects/{'a' * 64}",
        f"v1/others/{'a' * 64}",
        f"/v1/objects/{'a' * 64}",
        f"v1/objects/{'a' * 63}",
        f"v1/objects/{'a' * 64}\n",
        f"v1/objects/../{'a' * 61}",
        f"v1/objects/{'A' * 64}",
        f"v1/objects/{'٣' * 64}",
    ],
)
def test_what_is_none(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(StoreError):
        checked(name)
