from __future__ import annotations

from pathlib import Path

import pytest

from epctx.cache import Cache
from epctx.cache.records import Records
from epctx.engine.last_keys import History
from epctx.files.digest import Digest, of_bytes

OLD, NEW = of_bytes(b"old"), of_bytes(b"new")


def history(cache: Cache, manifest: str = "/m.yaml") -> History:
    return History(records=cache.records, manifest=Path(manifest))


def note(known: History, key: Digest) -> None:
    """As a build does with one action."""
    known.note("g@x", "compile", "a", key)
    known.save()


def test_the_last_key_of_an_action_is_remembered_by_whoever_opens_the_cache(cache: Cache) -> None:
    assert history(cache).last("g@x", "compile", "a") is None
    for key in (OLD, NEW):
        note(history(cache), key)
        assert history(cache).last("g@x", "compile", "a") == key


@pytest.mark.parametrize(
    ("manifest", "group", "action", "subject"),
    [
        ("/other.yaml", "g@x", "compile", "a"),
        ("/m.yaml", "g@y", "compile", "a"),
        ("/m.yaml", "g@x", "verify", "a"),
        ("/m.yaml", "g@x", "compile", "b"),
    ],
)
def test_of_another_action_nothing_is_known(
    cache: Cache, manifest: str, group: str, action: str, subject: str
) -> None:
    note(history(cache), OLD)
    assert history(cache, manifest).last(group, action, subject) is None


def test_names_are_not_run_together(cache: Cache) -> None:
    known = history(cache)
    known.note("a", "bc", "d", OLD)
    assert known.last("a", "bc", "d") == OLD
    assert known.last("ab", "c", "d") is None


def test_a_build_of_a_part_leaves_what_was_known_of_the_rest(cache: Cache) -> None:
    note(history(cache), OLD)
    known = history(cache)
    known.note("other@x", "compile", "a", NEW)
    known.save()
    assert history(cache).last("g@x", "compile", "a") == OLD
    assert history(cache).last("other@x", "compile", "a") == NEW


def test_the_same_key_is_not_written_again(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A no-op build writes nothing: the cache may be read-only, or on a network."""
    known = history(cache)
    note(known, OLD)
    monkeypatch.setattr(Records, "write", None)
    note(known, OLD)
    with pytest.raises(TypeError):
        note(known, NEW)
