"""Files of a package against a lock; `tests/integration/test_package_locked.py` has the attacks."""

from __future__ import annotations

from pathlib import Path

from epctx._version import __version__
from epctx.commands.package import against_lock, form
from epctx.commands.package.derived import derive
from epctx.files import digest, items
from epctx.files.digest import Digest
from epctx.lockfile.types import Lock, LockedFile, LockedPackage

VOCABULARY = items.made(b"words")
LOCKED = items.digest_of({"vocab.txt": VOCABULARY})


def lock() -> Lock:
    package = LockedPackage(
        assets={"tokenizer": {"vocab.txt": LockedFile(sha256=VOCABULARY.sha256.hex, size=5)}},
        component=None,
        description=None,
        execution_providers={},
        variants=(),
        version=None,
    )
    return Lock(
        execution_providers={},
        groups={},
        name="m",
        package=package,
        sources={},
        toolchain={"epctx": __version__},
    )


def test_a_package_of_one_asset_follows_from_its_lock(tmp_path: Path) -> None:
    package = lock().package
    assert package is not None
    made = derive(lock(), package, {VOCABULARY.sha256: VOCABULARY})
    for name, item in made.items.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(item.content)
    found: dict[str, Digest | str] = {name: item.sha256 for name, item in made.items.items()}
    entries = sorted(found)
    assert entries == [
        *("SHA256SUMS", form.MANIFEST, f"shared_assets/sha256-{LOCKED.hex}/vocab.txt"),
    ]

    def faults(entries: list[str], found: dict[str, Digest | str]) -> dict[str, str]:
        told = against_lock.check(tmp_path, entries, found, lock(), "the lock")
        return {f.subject: f.message for f in told if f.outcome == "fail"}

    assert faults(entries, found) == {}
    assert faults([*entries, "empty/"], found) == {"empty/": "does not follow from the lock"}
    assert faults(entries, {**found, form.MANIFEST: "is a link"}).keys() == {form.MANIFEST}
    other = {**found, form.MANIFEST: digest.of_bytes(b"{}", "sha256")}
    assert faults(entries, other) == {form.MANIFEST: "is not what follows from the lock"}
    without = {name: each for name, each in found.items() if "vocab" not in name}
    assert faults(list(without), without) == {"tokenizer/vocab.txt": "is missing, the lock has it"}
