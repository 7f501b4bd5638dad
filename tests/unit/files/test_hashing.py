"""Work on many files at once: all results by name, in order, and the first error."""

from __future__ import annotations

import pytest

from epctx.files import hashing


def test_the_error_of_the_first_name_is_raised() -> None:
    def work(name: str) -> None:
        if name != "a":
            raise OSError(name)

    with pytest.raises(OSError, match="b"):
        hashing.of_each(work, ["a", "b", "c"])
