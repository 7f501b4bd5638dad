"""Signatures of actions in a shared cache: DSSE envelopes, and Ed25519 keys with names.

The payload of an envelope is one line of JSON: the format version, the key, and the action's kind,
key record (which has the toolchain), result and files. Record and result are the same bytes as in
the local cache. So epctx can rebuild the payload from the local cache, and verify its signatures
again when other keys are trusted.

A public key is written as in Nix, `ci-1:BASE64`. Its name ends with a number, so that `ci-2` can
follow it. A private key is PKCS #8 in PEM. Its name is in a line before BEGIN, where RFC 7468
allows any text.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from epctx import codec, limits
from epctx.cache.action import StoredAction, StoredFile, key_of
from epctx.error_codes import Code
from epctx.errors import EpctxError, StorageError, UsageError
from epctx.files import open_flags, paths
from epctx.files.digest import Digest
from epctx.files.entries import read_document
from epctx.signing import dsse, keys
from epctx.signing.dsse import Envelope, Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

SIGNING_VARIABLE: Final = "EPCTX_CACHE_SIGNING_KEY"
TRUST_VARIABLE: Final = "EPCTX_CACHE_TRUST"
TYPE: Final = "application/vnd.epctx.action+json"
VERSION: Final = 1
_SIGNATURES: Final = 16
"""Greatest number of signatures of an envelope."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}-[0-9]{1,9}", re.ASCII)
_PUBLIC: Final = re.compile(rf"({_NAME.pattern}):([A-Za-z0-9+/]{{43}}=)", re.ASCII)
_NAMED: Final = re.compile(rf"^epctx key: ({_NAME.pattern})[ \t\r]*$", re.ASCII | re.MULTILINE)
_BYTES: Final = 1 << 16
"""Largest size of a file of keys."""
_TOO_LARGE: Final = f"it is larger than {_BYTES:,} bytes"


class Untrusted(Exception):
    """No trusted key signed an action; the text is one clause."""


class Damaged(Exception):
    """An envelope cannot be decoded, or contradicts itself; the text is one clause."""


Kind = Annotated[str, Meta(pattern="^[a-z]{1,32}$")]


class _Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    key: Digest
    kind: Kind
    record: msgspec.Raw
    result: msgspec.Raw
    files: tuple[StoredFile, ...]


def payload(key: Digest, action: StoredAction[msgspec.Raw]) -> bytes:
    """Encode the signed part of an action, always as the same bytes."""
    return codec.encode(
        _Payload(
            version=VERSION,
            key=key,
            kind=action.kind,
            record=action.record,
            result=action.result,
            files=action.files,
        )
    )


def seal(key: Digest, action: StoredAction[msgspec.Raw]) -> bytes:
    """Encode the envelope of a signed action."""
    return codec.encode(Envelope.of(TYPE, payload(key, action), action.signatures))


def unseal(key: Digest, envelope: bytes) -> StoredAction[msgspec.Raw]:
    """Return the action of an envelope for `key`; no signature is verified.

    Raises:
        Damaged: the envelope has another form or version, is for another key, or lists files that
            an action cannot have.
    """
    try:
        sealed = codec.decode(envelope, Envelope)
        content = dsse.decoded(sealed.payload)
        opened = codec.decode(content, _Payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(f"is not an action of version {VERSION}") from error
    if sealed.payload_type != TYPE or not 0 < len(sealed.signatures) <= _SIGNATURES:
        raise Damaged("has another type, or no signatures")
    if opened.key != key or key_of(opened.record) != key:
        raise Damaged("is of another key")
    _refuse_files(opened.files)
    action = StoredAction(
        kind=opened.kind,
        record=opened.record,
        result=opened.result,
        files=opened.files,
        signatures=sealed.signatures,
        fetched=True,
    )
    if payload(key, action) != content:
        raise Damaged("is not encoded as epctx encodes it")
    return action


def _refuse_files(files: tuple[StoredFile, ...]) -> None:
    names = {file.name.casefold() for file in files}
    if len(files) > limits.REMOTE_FILES.value or len(names) < len(files):
        raise Damaged("lists too many files, or one twice")
    if not all(paths.is_plain(file.name) for file in files):
        raise Damaged("lists a file outside its folder")
    most = limits.FILE_BYTES.value
    if not all(0 <= file.size <= most and file.digest.algorithm == "blake3" for file in files):
        raise Damaged("lists a file with an impossible size or digest")


class SigningKey:
    """A private key with its name."""

    def __init__(self, name: str, key: ed25519.Ed25519PrivateKey) -> None:
        self.name = name
        self._key = key

    def sign(self, key: Digest, action: StoredAction[msgspec.Raw]) -> Signature:
        """Sign the action `key`."""
        signed = self._key.sign(dsse.pae(TYPE, payload(key, action)))
        return Signature(keyid=self.name, sig=dsse.encoded(signed))

    @classmethod
    def parse(cls, text: bytes, where: str) -> SigningKey:
        """Parse a key that `keygen` wrote.

        Raises:
            UsageError: the text is not such a key. The message does not repeat the text.
        """
        from cryptography.hazmat.primitives.asymmetric import ed25519

        named = _NAMED.search(text.decode("utf-8", "replace"))
        key = keys.private_key(text)
        if named is None or not isinstance(key, ed25519.Ed25519PrivateKey):
            raise UsageError(
                "is not a signing key of epctx",
                where=where,
                remedy="write one with `epctx cache keygen KEY.pem`, and keep the line with its "
                "name before BEGIN",
                code=Code.ENVIRONMENT,
            )
        return cls(named[1], key)


class Trust:
    """Trusted public keys, by name."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys, sorted."""
        return tuple(sorted(self._keys))

    def signer(self, key: Digest, action: StoredAction[msgspec.Raw]) -> str:
        """Return the name of the first trusted key that signed the action `key`.

        Raises:
            Untrusted: no trusted key signed it, or a signature with the name of a trusted key is
                invalid.
        """
        from cryptography.hazmat.primitives.asymmetric import ed25519

        signatures = [(each.keyid or "", each.sig) for each in action.signatures]
        trusted = [(name, text) for name, text in signatures if name in self._keys]
        if not trusted:
            names = [name for name, _ in signatures if _NAME.fullmatch(name)]
            signers = f" ({', '.join(names[:3])})" if names else ""
            raise Untrusted(f"not signed by a trusted key{signers}")
        content = dsse.pae(TYPE, payload(key, action))
        for name, text in trusted:
            public = ed25519.Ed25519PublicKey.from_public_bytes(self._keys[name])
            try:
                valid = keys.holds(public, dsse.decoded(text), content)
            except ValueError:
                valid = False
            if not valid:
                raise Untrusted(f"signed by {name}, but the signature is not valid")
        return trusted[0][0]

    @classmethod
    def parse(cls, text: str, where: str) -> Trust:
        """Parse public keys, or paths of files with public keys, separated by white space.

        A line that is the path of a file may contain spaces.

        Raises:
            UsageError: a word is neither a key nor a file; two keys have one name.
        """
        keys: dict[str, bytes] = {}
        for name, public in _public_keys(_words(text), where, files=True):
            if keys.setdefault(name, public) != public:
                raise UsageError(
                    f"two keys are named {name}", where=where, remedy="leave out the wrong one"
                )
        return cls(keys)


class Voucher:
    """The signing key and the trusted keys of this process. Thread-safe.

    Args:
        trust: a file of public keys; None if `EPCTX_CACHE_TRUST` names them.
    """

    def __init__(
        self, trust: Path | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._file = trust
        self._environment = environment

    @cached_property
    def trust(self) -> Trust:
        """Trusted public keys.

        Raises:
            UsageError: the file or the variable cannot be read, or has other content.
        """
        if self._file is not None:
            return Trust.parse(_read(self._file).decode("utf-8", "replace"), str(self._file))
        return Trust.parse(self._environment.get(TRUST_VARIABLE, ""), TRUST_VARIABLE)

    @property
    def signs(self) -> bool:
        """Return whether a signing key is configured; it is not read yet."""
        return bool(self._environment.get(SIGNING_VARIABLE, "").strip())

    @cached_property
    def key(self) -> SigningKey | None:
        """The signing key; None if no key is configured.

        Raises:
            UsageError: the key cannot be read or parsed; `cryptography` is not installed.
        """
        if not self.signs:
            return None
        require()
        named = self._environment[SIGNING_VARIABLE].strip()
        content = _printed(named) if named.startswith("[") else _read(Path(named), SIGNING_VARIABLE)
        return SigningKey.parse(content, SIGNING_VARIABLE)


def keygen(path: Path, name: str | None) -> tuple[Path, str]:
    """Write a new private key to `path`, and the public key beside it.

    Returns:
        The path of the public key, and its line.

    Raises:
        UsageError: a file exists already; the name is not valid.
        StorageError: a file cannot be written.
    """
    require()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    name = name or _name_of(path)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a key",
            remedy="use letters, digits, `.`, `_`, `@` and `-`, and a number at the end: ci-1",
            code=Code.COMMAND_LINE,
        )
    key = ed25519.Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes_raw()
    line = f"{name}:{dsse.encoded(raw)}"
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = path.with_name(f"{path.name}.pub")
    for each in (path, public):
        if os.path.lexists(each):
            raise _in_the_way(each)
    _write(path, f"epctx key: {name}\n".encode() + pem, 0o600)
    _write(public, f"{line}\n".encode(), 0o644)
    return public, line


def require() -> None:
    """Raise UsageError if `cryptography` is not installed."""
    UsageError.if_missing("cryptography.hazmat.primitives.asymmetric.ed25519", "remote")


def _words(text: str) -> Iterator[str]:
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        yield from [line] if Path(line).is_file() else line.split()


def _public_keys(words: Iterable[str], where: str, *, files: bool) -> Iterator[tuple[str, bytes]]:
    for word in words:
        match = _PUBLIC.fullmatch(word)
        if match is not None:
            yield match[1], base64.b64decode(match[2])
        elif files and Path(word).is_file():
            text = _read(Path(word)).decode("utf-8", "replace")
            lines = (line for line in text.splitlines() if not line.startswith("#"))
            yield from _public_keys(" ".join(lines).split(), word, files=False)
        else:
            raise UsageError(
                f"{word[:100]!r} is no public key" + (" and no file" if files else ""),
                where=where,
                remedy="name lines like ci-1:BASE64, as in the KEY.pem.pub of `epctx cache keygen`"
                + (", or such files" if files else ""),
                code=Code.ENVIRONMENT,
            )


def _printed(command: str) -> bytes:
    """Run a command without a shell, and return its output. The command is a JSON list of a program
    and its arguments.

    Raises:
        UsageError: the text is not such a list; the command fails or takes too long. The message
            does not repeat its output.
    """
    bad = UsageError(
        "the command that prints the signing key failed",
        where=SIGNING_VARIABLE,
        why="it is not a JSON list of strings",
        remedy='name a file, or a command like ["pass", "show", "epctx/ci-1"]; run it yourself to '
        "see what it says",
        code=Code.ENVIRONMENT,
    )
    try:
        program = msgspec.json.decode(command, type=list[str])
        ran = subprocess.run(
            program,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limits.SIGNING_SECONDS.value,
            check=False,
        )
    except (msgspec.MsgspecError, IndexError):
        raise bad from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        bad.why = getattr(error, "strerror", None) or type(error).__name__
        raise bad from None
    if ran.returncode:
        bad.why = f"exit code {ran.returncode}"
        raise bad
    if len(ran.stdout) > _BYTES:
        bad.why = _TOO_LARGE
        raise bad
    return ran.stdout


def _read(path: Path, where: str | None = None) -> bytes:
    """Read a small file of keys. With `where`, the error does not name the path, since the user may
    have given the key itself.
    """
    try:
        content = read_document(path, _BYTES, pipes=True)
        if len(content) > _BYTES:
            raise OSError(None, _TOO_LARGE)
        return content
    except (OSError, ValueError) as error:  # a wrong path may be any text
        raise UsageError(
            "cannot be read",
            where=where or str(path),
            why=getattr(error, "strerror", None) or "it is not a path",
            remedy="name a file of a key, as `epctx cache keygen` writes it",
            code=Code.ENVIRONMENT,
        ) from None


def _name_of(path: Path) -> str:
    stem = path.name.partition(".")[0]
    return stem if _NAME.fullmatch(stem) else f"{stem}-1"


def _in_the_way(path: Path) -> EpctxError:
    return UsageError(
        "is there already",
        where=str(path),
        remedy="name another file: a key that is lost cannot be made again",
        code=Code.IN_THE_WAY,
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    with StorageError.if_refused(
        "the key cannot be written", file=str(path), remedy="name another folder"
    ):
        try:
            descriptor = os.open(path, open_flags.NEW, mode)
        except FileExistsError as error:
            raise _in_the_way(path) from error
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
