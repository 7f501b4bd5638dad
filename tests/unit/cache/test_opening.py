import subprocess
import sys
from pathlib import Path

import pytest

from epctx.cache.opening import Shared, opened


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"EPCTX_CACHE_DIR": str(folder / "cache"), **more}


def test_without_a_word_of_it_there_is_no_shared_cache(tmp_path: Path) -> None:
    cache = opened(print, environment=environment(tmp_path))
    assert (cache.remote, cache.trusts, cache.signs, cache.signed) == (None, (), False, False)


def test_the_environment_names_it(tmp_path: Path) -> None:
    told = environment(tmp_path, EPCTX_REMOTE_CACHE="file:///x", EPCTX_CACHE_SIGNING_KEY="k")
    cache = opened(print, environment=told)
    assert cache.remote is not None
    assert cache.signs


@pytest.mark.parametrize(("url", "there"), [("", False), ("s3://b", True)])
def test_the_command_line_replaces_the_environment(tmp_path: Path, url: str, there: bool) -> None:
    told = environment(tmp_path, EPCTX_REMOTE_CACHE="file:///x")
    cache = opened(print, Shared(url=url), environment=told)
    assert (cache.remote is not None) is there


def test_trust_counts_without_a_shared_cache(tmp_path: Path) -> None:
    key = f"ci-1:{'A' * 43}="
    (tmp_path / "trust").write_text(key)
    told = environment(tmp_path, EPCTX_CACHE_TRUST="other-1:" + "A" * 43 + "=")
    assert opened(print, environment=told).trusts == ("other-1",)
    assert opened(print, Shared(trust=tmp_path / "trust"), environment=told).trusts == ("ci-1",)


def test_nothing_of_it_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    program = (
        "import sys; from epctx.cache.opening import opened;"
        "opened(print, environment=dict(EPCTX_CACHE_DIR=sys.argv[1], EPCTX_REMOTE_CACHE='s3://b',"
        " EPCTX_CACHE_SIGNING_KEY='k', EPCTX_CACHE_TRUST='t'));"
        "print([m for m in ('obstore', 'requests', 'cryptography') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (Shared(), 1),
        (Shared(jobs=True), 0),
        (Shared(url="file:///x", jobs=True), 1),
    ],
)
def test_a_store_of_jobs_needs_nobody_who_is_trusted(
    tmp_path: Path, shared: Shared, said: int
) -> None:
    """But one that the command line names as a cache does."""
    told: list[str] = []
    names = environment(tmp_path, EPCTX_REMOTE_CACHE="file:///x")
    cache = opened(told.append, shared, environment=names)
    assert cache.remote is not None and not cache.remote.reads
    assert len(told) == said
