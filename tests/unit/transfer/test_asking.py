"""What answers say of waits and parts. Servers: tests/faults/test_stores.py, test_registry.py."""

import time
from email.utils import formatdate

import pytest
import requests

from epctx.transfer import asking
from epctx.transfer.attempts import StoreError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("7", 7), ("soon", 0), ("-3", 0), (formatdate(0, usegmt=True), 0)],
)
def test_retry_after(text: str, seconds: float) -> None:
    assert asking._after(text) == seconds
    assert 50 < asking._after(formatdate(time.time() + 60, usegmt=True)) <= 60


@pytest.mark.parametrize("span", ["bytes 5-9/11", "bytes 5-9/*", "5", "", "bytes x-9/10"])
def test_a_part_of_something_else_is_none(span: str) -> None:
    answer = requests.Response()
    answer.status_code = 206
    answer.headers["Content-Range"] = span
    with pytest.raises(StoreError, match="a part that was not asked for"):
        asking._start(answer, 10)
