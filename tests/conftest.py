"""Guards around every test."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import settings

from tests.kit import devices, host
from tests.kit.store_servers import Servers

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

# The same examples in every run of `make test`; `make soak` looks for new ones. No deadline: how
# long an example takes depends on what else the machine does.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("EPCTX_HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of many rows that are alike `make test` runs one in so many, always the same; `make soak` the
    others. `pytest.mark.wide(one_in)` says it.
    """
    for item in items:
        wide = item.get_closest_marker("wide")
        if wide is not None and zlib.crc32(item.name.encode()) % wide.args[0]:
            item.add_marker("soak")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs what this host lacks, before any fixture is made for it; the only skips.

    `pytest.mark.needs(what, why)` and `pytest.mark.needs_device(ep, ...)` say it.
    """
    for mark in item.iter_markers("needs"):
        if host.lacking(mark.args[0], _folder(item.config)):
            pytest.skip(": ".join(("this host has no " + mark.args[0], *mark.args[1:])))
    needed = {name: None for mark in item.iter_markers("needs_device") for name in mark.args}
    for name in needed:
        if (reason := devices.lacking(name)) is not None:
            pytest.skip(reason)


def _folder(config: pytest.Config) -> Path:
    """Where tests have their files, or will have."""
    base = Path(config.getoption("basetemp") or tempfile.gettempdir())
    return next(each for each in (base, *base.parents) if each.exists())


# A shell starts what runs in the background with interrupts ignored: so would be what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _no_fixture_touches_the_users_cache(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """What fixtures of modules build comes before the guard of each test."""
    before = dict(os.environ)
    temporary = tmp_path_factory.getbasetemp() / "temporary"  # whose files end with the session's
    temporary.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    os.environ["EPCTX_CACHE_DIR"] = str(tmp_path_factory.getbasetemp() / "caches" / "of-fixtures")
    os.environ.pop("EPCTX_CACHE_READONLY", None)
    yield
    tempfile.tempdir = None
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _no_test_touches_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each test has a cache of its own, which is made when something is put into it."""
    folder = tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder))
    monkeypatch.delenv("EPCTX_CACHE_READONLY", raising=False)


@pytest.fixture(scope="module")
def jobs_inline() -> Iterator[None]:
    """The jobs of a module's builds are carried out without processes: `pytest.mark.usefixtures`.

    For what a build makes of the reference EP; that workers do the same, other modules show.
    """
    from tests.kit.inline import Inline

    with mock.patch("epctx.worker.pool.Worker", Inline):
        yield


@pytest.fixture(scope="session")
def onnx_node_tests(tmp_path_factory: pytest.TempPathFactory) -> tuple[TestCase, ...]:
    """ONNX's own node tests."""
    from tests.kit import node_tests

    return node_tests.cases(node_tests.shared(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def store_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Real servers of shared caches, each started when it is first asked for."""
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers
