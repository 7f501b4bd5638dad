"""Kinds of hosts: this one, those of a network of one's own, and those of the internet."""

import pytest

from epctx.transfer.hosts import is_internal, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback", "internal"),
    [
        ("localhost", True, True),
        ("127.9.9.9", True, True),
        ("127.1", True, True),
        ("::1", True, True),
        ("::ffff:127.0.0.1", True, True),
        ("10.0.0.1", False, True),
        ("169.254.169.254", False, True),
        ("0.0.0.0", False, True),
        ("93.184.216.34", False, False),
        ("registry.example.com", False, False),
        ("", False, False),
    ],
)
def test_what_an_address_says_of_a_host(host: str, loopback: bool, internal: bool) -> None:
    assert (is_loopback(host), is_internal(host)) == (loopback, internal)
    assert not is_loopback(None)
