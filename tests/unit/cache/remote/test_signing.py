import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctx import codec
from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.remote import signing
from epctx.cache.remote.signing import SIGNING_VARIABLE, SigningKey, Trust, Untrusted, Voucher
from epctx.cache.store import Cache
from epctx.errors import UsageError
from epctx.files import digest
from epctx.signing.dsse import Signature
from tests.kit.vouching import KEY, action, key_pair, voucher

FILE = StoredFile(name="a", size=1, digest=digest.of_bytes(b"a"))
SIGNED = replace(action((FILE,)), signatures=(Signature(keyid="ci-1", sig="AAAA"),))


def test_an_envelope_is_json_that_other_tools_read() -> None:
    sealed = json.loads(signing.seal(KEY, SIGNED))
    assert sealed["payloadType"] == signing.TYPE
    assert sealed["signatures"] == [{"keyid": "ci-1", "sig": "AAAA"}]
    payload = json.loads(base64.b64decode(sealed["payload"]))
    assert list(payload) == ["version", "key", "kind", "record", "result", "files"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(result=JSON, indent=st.sampled_from([None, 2]))
def test_a_payload_is_made_again_from_the_local_record(result: object, indent: int | None) -> None:
    """Byte for byte, however what was signed was written."""
    written = json.dumps(result, indent=indent, allow_nan=False, ensure_ascii=True).encode()
    made = replace(SIGNED, result=msgspec.Raw(written))
    kept = codec.decode(codec.encode(made), StoredAction[msgspec.Raw])
    assert signing.payload(KEY, kept) == signing.payload(KEY, made)


def test_the_cache_keeps_what_was_signed(cache: Cache) -> None:
    result = msgspec.Raw(b'{"a": [1.0,  2e3], "\\u00e9": "\xc3\xa9"}')
    made = replace(SIGNED, result=result)
    cache.records.write("actions", KEY.hex, made)
    kept = cache.records.read("actions", KEY.hex, StoredAction[msgspec.Raw])
    assert kept is not None
    assert signing.payload(KEY, kept) == signing.payload(KEY, made)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The envelope, with another payload; nothing else of it is looked at here."""
    sealed = json.loads(signing.seal(KEY, SIGNED))
    told = json.loads(base64.b64decode(sealed["payload"]))
    change(told)
    content = json.dumps(told, separators=(",", ":")).encode()
    return json.dumps(sealed | {"payload": base64.b64encode(content).decode()}).encode()


def named(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda told: told.update(files=[told["files"][0] | {"name": name} for name in names])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        signing.seal(KEY, replace(SIGNED, signatures=())),
        signing.seal(KEY, replace(SIGNED, signatures=SIGNED.signatures * 17)),
        signing.seal(KEY, SIGNED).replace(b"vnd.epctx", b"vnd.other"),
        signing.seal(KEY, SIGNED).replace(b'"payload":"', b'"payload":"\\u00e9'),
        signing.seal(digest.of_bytes(b"x"), SIGNED),
        changed(lambda told: told.update(version=2)),
        changed(lambda told: told.update(version=0)),
        changed(lambda told: told.update(more=1)),
        changed(lambda told: told.update(record={"v": 2})),
        changed(lambda told: told.update(key=str(digest.of_bytes(b"x")))),
        changed(lambda told: told.update(kind="an other")),
        changed(named("../a")),
        changed(named("/a")),
        changed(named("C:a")),
        changed(named("a\\b")),
        changed(named("a", "A")),
        changed(named(*(str(n) for n in range(10_001)))),
        changed(lambda told: told["files"][0].update(size=-1)),
        changed(lambda told: told["files"][0].update(size=1 << 60)),
        changed(lambda told: told["files"][0]["digest"].update(algorithm="sha256")),
        changed(lambda told: told["files"][0]["digest"].update(hex="../../x")),
    ],
)
def test_what_is_not_as_it_must_be_is_damaged(content: bytes) -> None:
    with pytest.raises(signing.Damaged):
        signing.unseal(KEY, content)


def test_a_payload_that_is_written_otherwise_is_damaged() -> None:
    assert signing.unseal(KEY, changed(lambda told: None)).files == (FILE,)
    sealed = json.loads(signing.seal(KEY, SIGNED))
    spaced = base64.b64decode(sealed["payload"]).replace(b'"kind":', b'"kind": ')
    sealed["payload"] = base64.b64encode(spaced).decode()
    with pytest.raises(signing.Damaged, match="is not encoded"):
        signing.unseal(KEY, json.dumps(sealed).encode())


def signed_by(*keys: SigningKey) -> tuple[Signature, ...]:
    return tuple(key.sign(KEY, action()) for key in keys)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, str]:
    return key_pair(tmp_path, "ci-1")


@pytest.fixture
def key(pair: tuple[Path, str]) -> SigningKey:
    return SigningKey.parse(pair[0].read_bytes(), "test")


def test_a_key_is_written_once_and_for_its_user_alone(tmp_path: Path) -> None:
    public, line = signing.keygen(tmp_path / "release.pem", None)
    assert public == tmp_path / "release.pem.pub"
    assert public.read_text() == f"{line}\n"
    assert line.startswith("release-1:")
    if os.name == "posix":
        assert (tmp_path / "release.pem").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "release.pem").read_bytes()
    with pytest.raises(UsageError, match="there already"):
        signing.keygen(tmp_path / "release.pem", None)
    (tmp_path / "other.pem.pub").touch()
    with pytest.raises(UsageError, match="there already"):
        signing.keygen(tmp_path / "other.pem", None)
    assert (tmp_path / "release.pem").read_bytes() == before
    assert not (tmp_path / "other.pem").exists()


@pytest.mark.parametrize(
    "name", ["ci", "ci-", "-1", "ci 1-1", "ci-1\n", "ci:-1", "ci-1:", "a" * 200]
)
def test_a_name_has_a_number_at_its_end(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name"):
        signing.keygen(tmp_path / "k.pem", name)


def test_what_it_signs_is_the_same_each_time(key: SigningKey) -> None:
    assert key.sign(KEY, action()) == key.sign(KEY, action())


def test_what_was_signed_is_all_of_it(key: SigningKey, pair: tuple[Path, str]) -> None:
    trust, signatures = Trust.parse(pair[1], "test"), signed_by(key)
    for other in (action(result=b"{}"), replace(action(), kind="verify")):
        with pytest.raises(Untrusted, match="is not valid"):
            trust.signer(KEY, replace(other, signatures=signatures))


def test_others_do_not_count(key: SigningKey, tmp_path: Path) -> None:
    _, other = key_pair(tmp_path / "o", "other-1")
    _, namesake = key_pair(tmp_path / "n", "ci-1")
    sealed = replace(action(), signatures=signed_by(key))
    with pytest.raises(Untrusted, match=r"not signed by a trusted key \(ci-1\)"):
        Trust.parse(other, "test").signer(KEY, sealed)
    with pytest.raises(Untrusted, match="is not valid"):
        Trust.parse(namesake, "test").signer(KEY, sealed)
    with pytest.raises(Untrusted, match=r"not signed by a trusted key$"):
        Trust.parse(other, "test").signer(KEY, action())


def test_of_two_signatures_by_trusted_names_both_must_hold(
    key: SigningKey, pair: tuple[Path, str], tmp_path: Path
) -> None:
    private, line = key_pair(tmp_path / "o", "other-1")
    other = SigningKey.parse(private.read_bytes(), "test")
    good, second = signed_by(key, other)
    bad = replace(second, sig=good.sig)
    both = Trust.parse(f"{pair[1]} {line}", "test")
    assert both.signer(KEY, replace(action(), signatures=(good, second))) == "ci-1"
    with pytest.raises(Untrusted, match="is not valid"):
        both.signer(KEY, replace(action(), signatures=(good, bad)))
    only = Trust.parse(pair[1], "test")
    assert only.signer(KEY, replace(action(), signatures=(bad, good))) == "ci-1"


def test_a_signer_that_is_no_name_is_not_repeated(pair: tuple[Path, str]) -> None:
    forged = replace(action(), signatures=(Signature(keyid="\x1b[2Jx-1", sig="AAAA"),))
    with pytest.raises(Untrusted, match=r"not signed by a trusted key$"):
        Trust.parse(pair[1], "test").signer(KEY, forged)


def test_trust_is_lines_and_files(pair: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    _, second = key_pair(folder, "ci-2")
    public = folder / "ci-2.pem.pub"
    public.write_text(f"# of CI\n{second}\n")
    assert Trust.parse("", "test").names == ()
    assert not Trust.parse("", "test")
    assert Trust.parse(f"{pair[1]}\n{public}\n", "test").names == ("ci-1", "ci-2")
    assert Trust.parse(f"{pair[1]} {pair[1]}", "test").names == ("ci-1",)
    named = tmp_path / "trusted"
    named.write_text(f"{pair[1]}\n{second}\n")
    assert Voucher(named, {}).trust.names == ("ci-1", "ci-2")


@pytest.mark.parametrize("text", ["ci-1:AAAA", "no/such/file", "ci-1"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no public key"):
        Trust.parse(text, "EPCTX_CACHE_TRUST")


def test_two_keys_of_one_name_are_refused(tmp_path: Path) -> None:
    lines = [key_pair(tmp_path / each, "ci-1")[1] for each in "ab"]
    with pytest.raises(UsageError, match="two keys are named ci-1"):
        Trust.parse(" ".join(lines), "test")


def test_the_file_replaces_the_environment(pair: tuple[Path, str], tmp_path: Path) -> None:
    named = tmp_path / "trusted"
    named.write_text(key_pair(tmp_path / "o", "other-1")[1])
    assert Voucher(named, {signing.TRUST_VARIABLE: pair[1]}).trust.names == ("other-1",)


def test_a_file_that_is_too_large_is_refused_not_cut(
    pair: tuple[Path, str], tmp_path: Path
) -> None:
    named = tmp_path / "trusted"
    named.write_text(f"{'# ' * (1 << 15)}\n{pair[1]}\n")
    with pytest.raises(UsageError, match="larger than 65,536 bytes"):
        _ = Voucher(named, {}).trust


def test_a_command_prints_the_key(pair: tuple[Path, str]) -> None:
    program = "import sys, pathlib; print(pathlib.Path(sys.argv[1]).read_text())"
    command = json.dumps([sys.executable, "-c", program, str(pair[0])])
    key = Voucher(None, {SIGNING_VARIABLE: command}).key
    assert key is not None
    assert key.name == "ci-1"


SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"{SECRET}\0",
        f'["{SECRET}"]',
        f'["{sys.executable}", "-c", "raise SystemExit(3)", "{SECRET}"]',
        f'["{sys.executable}", "-c", "print(1)", "{SECRET}"]',
        f'["{SECRET}", 1]',
        "[]",
        f"[{SECRET}",
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(UsageError) as raised:
        _ = Voucher(None, {SIGNING_VARIABLE: value}).key
    assert SIGNING_VARIABLE in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_SIGNING_SECONDS", "1")
    command = json.dumps([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(UsageError, match="TimeoutExpired"):
        _ = Voucher(None, {SIGNING_VARIABLE: command}).key


def test_a_key_without_its_name_is_refused(pair: tuple[Path, str], tmp_path: Path) -> None:
    bare = tmp_path / "bare.pem"
    bare.write_text(pair[0].read_text().partition("\n")[2])
    with pytest.raises(UsageError, match="not a signing key"):
        _ = voucher(bare).key


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import x25519

    pem = x25519.X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "x.pem").write_bytes(b"epctx key: ci-1\n" + pem)
    with pytest.raises(UsageError, match="not a signing key"):
        _ = voucher(tmp_path / "x.pem").key


def test_without_its_package_it_says_so(
    pair: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(UsageError, match=r"epctx\[remote\]"):
        _ = voucher(pair[0]).key
