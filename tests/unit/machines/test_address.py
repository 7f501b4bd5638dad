import sys
from pathlib import Path

import pytest

from epctx.errors import ProviderUnavailable, UsageError
from epctx.machines import address
from epctx.machines.address import Address, Tls


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("dask://farm:8786", Address(host="farm", port=8786)),
        ("dask://[::1]:1", Address(host="::1", port=1)),
        ("dask://local", Address(workers=2)),
        ("dask://local?workers=3", Address(workers=3)),
    ],
)
def test_what_a_url_names(url: str, found: Address) -> None:
    assert address.parsed(url) == found


@pytest.mark.parametrize(
    "url",
    [
        *("", "dask://", "dask://farm", "dask://farm:x", "tcp://farm:1", "dask://farm:1/path"),
        *("dask://local?workers=0", "dask://local?workers=257", "dask://local?cores=1"),
        *("dask://user@farm:1", "dask://farm:1?workers=1", "dask://farm:99999"),
    ],
)
def test_what_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address of machines"):
        address.parsed(url)


def test_only_this_machine_is_talked_to_in_the_clear() -> None:
    assert address.contact(Address(host="::1", port=1), Tls()) == ("tcp://[::1]:1", None)
    assert address.contact(Address(host="localhost", port=1), Tls())[1] is None
    assert address.contact(Address(host="farm", port=1), Tls(insecure=True))[1] is None
    with pytest.raises(UsageError, match="whoever reaches farm"):
        address.contact(Address(host="farm", port=1), Tls())


def test_certificates_are_named_all_or_none() -> None:
    path = Path("x.pem")
    with pytest.raises(UsageError, match="TLS also needs --tls-cert and --tls-key"):
        address.contact(Address(host="farm", port=1), Tls(ca=path))
    contact, security = address.contact(
        Address(host="farm", port=1), Tls(ca=path, cert=path, key=path)
    )
    assert contact == "tls://farm:1" and security is not None and security.require_encryption


def test_without_dask_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    address.refuse_without_dask()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ProviderUnavailable) as caught:
        address.refuse_without_dask()
    assert caught.value.remedy == "pip install 'epctx[dask]'"
