"""What a server lists is not believed further than it must be."""

import pytest

from epctx.cache.remote import webdav
from epctx.cache.remote.store import Stored
from epctx.transfer.attempts import StoreError

ONE = (
    "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:getcontentlength>{size}"
    "</D:getcontentlength><D:getlastmodified>Mon, 23 Nov 2026 13:52:55 GMT</D:getlastmodified>"
    "</D:prop></D:propstat></D:response>"
)


def _listing(*hrefs: str, size: str = "5") -> list[bytes]:
    """In pieces that end anywhere."""
    inside = "".join(ONE.format(href=each, size=size) for each in hrefs)
    text = f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{inside}</D:multistatus>'.encode()
    return [text[start : start + 7] for start in range(0, len(text), 7)]


def test_blobs_are_told_by_the_last_part_of_a_path() -> None:
    hex_ = "ab" * 32
    hrefs = ("/deep/v1/objects/", f"/deep/v1/objects/{hex_}", "https://elsewhere/../../etc/passwd")
    name = f"v1/objects/{hex_}"
    assert list(webdav.listed(_listing(*hrefs), "v1/objects")) == [
        Stored(name=name, size=5, modified=1795441975.0)
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"no XML"],
        [b"<D:multistatus xmlns:D='DAV:'>"],
        _listing(f"/{'a' * 64}", size="many"),
        [
            b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">',
            *(b'<!ENTITY %c "%b">' % (98 + n, b"&%c;" % (97 + n) * 50) for n in range(12)),
            b"]><x>&m;</x>",
        ],
    ],
)
def test_what_cannot_be_read_is_told(pieces: list[bytes]) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        list(webdav.listed(pieces, "v1/objects"))


def test_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_REMOTE_NAMES", "3")
    pieces = _listing(*(f"/{each:064x}" for each in range(9)))
    with pytest.raises(StoreError, match="more than 3 names"):
        list(webdav.listed(pieces, "v1/objects"))
    assert webdav.most_bytes() == 3 << 10
