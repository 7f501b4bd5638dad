"""Which signatures are looked for where, and what is not looked at without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from epctx import api
from epctx.commands.verify import signatures
from epctx.commands.verify.signatures import Judged
from epctx.signing.keys import Trusted
from tests.kit import signing


def write(folder: Path) -> Path:
    """A folder as of a group, and one with a model below it."""
    (folder / "g").mkdir(parents=True)
    (folder / "g" / "SHA256SUMS").write_text("", encoding="utf-8")
    (folder / "a.bin").write_bytes(b"aaaa")
    return folder


@pytest.fixture
def trusted(tmp_path: Path) -> Trusted:
    found = Trusted.load([signing.write_key(tmp_path, "k")[1]], [])
    assert found is not None
    return found


def labels(*folders: Path) -> dict[Path, str]:
    return {folder: folder.name for folder in folders}


def signed(folder: Path) -> Path:
    api.sign(write(folder), key=folder.parent / "k.pem")
    return folder


def told(judged: Judged) -> list[tuple[str, str]]:
    return [
        (finding.subject, finding.message)
        for report in judged.reports
        for finding in report.findings
        if finding.outcome == "fail"
    ]


def test_a_signature_covers_all_that_is_below_it(tmp_path: Path, trusted: Trusted) -> None:
    folder = signed(tmp_path / "f")
    for named in (folder, tmp_path):
        judged = signatures.judge([named], labels(folder / "g"), [], trusted)
        assert told(judged) == [] and judged.admits(folder / "g")
        assert [report.folder for report in judged.reports] == [folder.as_posix()]


def test_where_nobody_is_trusted_a_signature_is_not_checkable(
    tmp_path: Path, trusted: Trusted
) -> None:
    folder = signed(tmp_path / "f")
    (folder / "a.bin").write_bytes(b"b")
    judged = signatures.judge([folder], labels(folder / "g"), [], None)
    ((finding,),) = (report.findings for report in judged.reports)
    assert finding.outcome == "not checkable" and judged.admits(folder)
    assert signatures.judge([tmp_path / "g"], {}, [], None).reports == ()


def test_what_is_not_signed_fails_and_is_not_looked_at(tmp_path: Path, trusted: Trusted) -> None:
    folder, other = signed(tmp_path / "f"), write(tmp_path / "o")
    judged = signatures.judge([tmp_path], labels(folder / "g", other / "g"), [], trusted)
    assert told(judged) == [(".", "is not signed: no model.sig covers it")]
    assert judged.admits(folder / "g") and not judged.admits(other / "g")


def test_a_signature_does_not_cover_what_it_leaves_out(tmp_path: Path, trusted: Trusted) -> None:
    """OpenSSF Model Signing signs nothing of git's folders: outputs in one are not signed."""
    folder = signed(tmp_path / "f")
    write(folder / ".git")
    judged = signatures.judge([folder], labels(folder / "g", folder / ".git" / "g"), [], trusted)
    assert told(judged) == [(".", "is not signed: no model.sig covers it")]
    assert judged.admits(folder / "g") and not judged.admits(folder / ".git" / "g")


def test_a_model_is_covered_by_the_signature_of_its_folder(
    tmp_path: Path, trusted: Trusted
) -> None:
    folder = signed(tmp_path / "f")
    assert not told(signatures.judge([folder / "a.bin"], labels(folder), [], trusted))
    assert told(signatures.judge([folder / "g" / "SHA256SUMS"], labels(folder / "g"), [], trusted))


def test_an_archive_is_not_signed(tmp_path: Path, trusted: Trusted) -> None:
    archive = tmp_path / "m.tar"
    archive.write_bytes(b"")
    judged = signatures.judge([], {}, [archive], trusted)
    assert len(told(judged)) == 1 and not judged.admits(archive)


def swapped(folder: Path) -> None:
    """The signature of another folder, by the same key."""
    other = signed(folder.parent / "other")
    (other / "a.bin").write_bytes(b"another")
    api.sign(other, key=folder.parent / "k.pem")
    (other / "model.sig").replace(folder / "model.sig")


def link(folder: Path) -> None:
    (folder / "a.bin").rename(folder.parent / "a.bin")
    (folder / "a.bin").symlink_to(folder.parent / "a.bin")


def linked_signature(folder: Path) -> None:
    (folder / "model.sig").rename(folder.parent / "model.sig")
    (folder / "model.sig").symlink_to(folder.parent / "model.sig")


def huge(folder: Path) -> None:
    os.truncate(folder / "model.sig", (64 << 20) + 1)


def by_another_key(folder: Path) -> None:
    api.sign(folder, key=signing.write_key(folder.parent, "other")[0])


def replaced(folder: Path) -> None:
    (folder / "model.sig").unlink()
    (folder / "model.sig").mkdir()


ATTACKS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a byte": (lambda f: (f / "a.bin").write_bytes(b"aaab"), "a.bin", "was changed since"),
    "a file less": (lambda f: (f / "a.bin").unlink(), "a.bin", "is missing, but was signed"),
    "a file more": (lambda f: (f / "x").touch(), "x", "is not signed"),
    "another case": (lambda f: (f / "a.bin").rename(f / "A.bin"), "A.bin", "is not signed"),
    "the signature of another": (swapped, "a.bin", "was changed since it was signed"),
    "another key": (by_another_key, "model.sig", "which is not trusted"),
    "huge": (huge, "model.sig", "is larger than 64 MiB"),
    "empty": (lambda f: (f / "model.sig").write_bytes(b""), "model.sig", "not a Sigstore bundle"),
    "a folder": (replaced, "model.sig", "cannot be read: is a folder"),
}
LINKS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a link": (link, "a.bin", "cannot be read: is not a regular file"),
    "a link to the signature": (linked_signature, "model.sig", "cannot be read"),
}


def attack(
    tmp_path: Path, trusted: Trusted, row: tuple[Callable[[Path], object], str, str]
) -> None:
    change, subject, words = row
    folder = signed(tmp_path / "f")
    assert signatures.judge([folder], labels(folder / "g"), [], trusted).admits(folder / "g")
    change(folder)
    judged = signatures.judge([folder], labels(folder / "g"), [], trusted)
    found = [message for name, message in told(judged) if name == subject]
    assert len(found) == 1 and words in found[0], told(judged)
    assert not judged.admits(folder / "g")


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(tmp_path: Path, trusted: Trusted, name: str) -> None:
    attack(tmp_path, trusted, ATTACKS[name])


@pytest.mark.needs("links", "they are the attack")
@pytest.mark.parametrize("name", LINKS)
def test_attacks_by_links(tmp_path: Path, trusted: Trusted, name: str) -> None:
    attack(tmp_path, trusted, LINKS[name])
