"""Without a browser, tests of pages say so; on CI that is no excuse."""

import pytest

from tests.kit import browsing


@pytest.fixture(autouse=True)
def _nothing_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


def test_without_a_browser_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"needs a browser: run \.ci/tools"):
        browsing.executable()


def test_on_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs a browser"):
        browsing.executable()
