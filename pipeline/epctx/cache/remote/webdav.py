"""Listing of a WebDAV folder: RFC 4918, PROPFIND."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from epctx import limits
from epctx.cache.remote.store import Stored, is_name
from epctx.transfer.attempts import StoreError

PROPERTIES: Final = (
    b'<?xml version="1.0"?><propfind xmlns="DAV:"><prop>'
    b"<getcontentlength/><getlastmodified/></prop></propfind>"
)
"""Body of the request."""
_ENTRY_BYTES: Final = 1 << 10


def most_bytes() -> int:
    """Return the greatest length of a listing."""
    return limits.REMOTE_NAMES.value * _ENTRY_BYTES


def listed(pieces: Iterable[bytes], folder: str) -> Iterator[Stored]:
    """The blobs of a folder. Of the paths that the server tells, only their last parts are taken.

    Raises:
        StoreError: it is no such listing, or one of too many.
    """
    try:
        for count, element in enumerate(_responses(pieces)):
            if count > limits.REMOTE_NAMES.value:
                raise StoreError(f"it lists more than {limits.REMOTE_NAMES}")
            name = f"{folder}/{_text(element, 'href').rpartition('/')[2]}"
            if is_name(name):
                yield _stored(name, element)
    except (ET.ParseError, ValueError):
        raise StoreError("it answers a listing that cannot be read") from None


def _responses(pieces: Iterable[bytes]) -> Iterator[ET.Element]:
    root: list[ET.Element] = []
    parser: ET.XMLPullParser[Any] = ET.XMLPullParser(("start", "end"))
    for piece in pieces:
        parser.feed(piece)
        for event, element in cast("Iterator[tuple[str, ET.Element]]", parser.read_events()):
            if event == "start":
                root = root or [element]
            elif element.tag == "{DAV:}response":
                yield element
                root[0].clear()
    parser.close()


def _stored(name: str, element: ET.Element) -> Stored:
    modified = parsedate_to_datetime(_text(element, "getlastmodified")).timestamp()
    return Stored(name=name, size=int(_text(element, "getcontentlength")), modified=modified)


def _text(element: ET.Element, tag: str) -> str:
    return element.findtext(f".//{{DAV:}}{tag}", "").strip()
