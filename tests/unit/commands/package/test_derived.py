"""A package as it follows from a lock; `tests/integration/test_package_locked.py` has it whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epctx.commands.package import contents
from epctx.lockfile.types import Lock, LockedFile, LockedPackage, LockedVariant

PACKAGE = LockedPackage(
    assets={"tokenizer": {"vocab.txt": LockedFile(sha256="5" * 64, size=5)}},
    component=None,
    description=None,
    execution_providers={},
    variants=(),
    version=None,
)
LOCK = Lock(execution_providers={}, groups={}, name="m", sources={}, toolchain={}, package=PACKAGE)


def test_assets_are_needed_like_outputs() -> None:
    assert [name for name, _ in contents.needed(LOCK, PACKAGE)] == ["tokenizer/vocab.txt"]
    unknown = LockedVariant(execution_providers=(), files={}, group="x/y", models=())
    with pytest.raises(KeyError):  # a lock that was read has no such variant
        list(contents.needed(LOCK, replace(PACKAGE, variants=(unknown,))))
