"""The built documentation in a browser: every page, light and dark, and the search.

`make docs` builds it into build/docs and runs this on it; by itself the test builds its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from scripts.site.__main__ import build
from tests.kit import browsing

pytestmark = pytest.mark.soak
ROWS = "() => document.querySelectorAll('tr:nth-child(n+12)').forEach(row => row.remove())"
"""Leaves out of long tables what is like what stands above: axe takes minutes for hundreds."""
LIST = ".sidebar-drawer"
"""The list of all pages, which is the same on each."""
QUESTIONS = {
    "install": {"howto/install", "questions"},
    "hosts": {"reference/hosts", "execution-providers", "questions"},
    "execution providers": {"execution-providers", "questions"},
    "SoC names": {"errors/E0315", "questions"},
    "manifest keys": {"reference/manifest", "questions"},
    "tolerance": {"reference/manifest", "questions"},
    "fallback": {"questions"},
    "symbolic dimensions": {"questions"},
    "weight sharing": {"examples/02-weight-sharing/README", "questions"},
    "targets": {"reference/manifest", "questions"},
    "what to ship": {"questions"},
    "load in an application": {"questions"},
    "cache": {"shared-cache", "reference/commands/cache"},
    "CI": {"howto/ci", "shards", "questions"},
    "lock on another host": {"errors/E0804", "execution-providers"},
    "quantization": {"quantization"},
    "genai": {"llm", "examples/06-llm/README"},
    "GPU": {"reference/options/NvTensorRTRTXExecutionProvider", "questions"},
    "telemetry": {"questions"},
    "exit codes": {"reference/exit-codes"},
}
"""What is searched for, and the pages of which one must be among the first three."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = os.environ.get("SITE")
    folder = Path(built) if built else tmp_path_factory.mktemp("site")
    assert built or build(folder) == []
    return folder.resolve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.chromium() as found:
        yield found


class Reading:
    """A page that is led through the site, and what went wrong on the way."""

    def __init__(self, browser: Browser, scheme: browsing.Scheme) -> None:
        self.faults: list[str] = []
        self.page: Page = browser.new_context(color_scheme=scheme).new_page()
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("requestfailed", lambda request: self.faults.append(request.url))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith("file:"):
            self.faults.append(f"asked for {url}")

    def objections(self, *rules: str, leaving: str = "") -> list[str]:
        """What axe has against the page that is open, but for a part of it."""
        options: dict[str, object] = {"preload": False, "resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        context = {"exclude": [[leaving]]} if leaving else None
        found = Axe().run(self.page, context, options).response["violations"]
        return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize(("scheme", "rules"), [("light", ()), ("dark", ("color-contrast",))])
def test_every_page_opens_and_anybody_can_read_it(
    site: Path, browser: Browser, scheme: browsing.Scheme, rules: tuple[str, ...]
) -> None:
    """In the dark only colours differ."""
    reading = Reading(browser, scheme)
    wrong = {}
    for path in sorted(site.rglob("*.html")):
        reading.page.goto(path.as_uri())
        reading.page.evaluate(ROWS)
        found = reading.objections(*rules, leaving="" if path.name == "index.html" else LIST)
        if found or reading.faults:
            wrong[path.relative_to(site).as_posix()] = [*found[:3], *reading.faults]
            reading.faults.clear()
    assert wrong == {}


def test_light_and_dark_differ(site: Path, browser: Browser) -> None:
    colours = set()
    schemes: list[browsing.Scheme] = ["light", "dark"]
    for scheme in schemes:
        page = Reading(browser, scheme).page
        page.goto((site / "index.html").as_uri())
        colours.add(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_search_finds_the_answers(site: Path, browser: Browser) -> None:
    reading = Reading(browser, "light")
    missed = {}
    for question, answers in QUESTIONS.items():
        reading.page.goto((site / "index.html").as_uri())
        box = reading.page.locator("input[name=q]").first
        box.fill(question)
        box.press("Enter")
        reading.page.wait_for_selector(".search-summary:has-text('found')")
        links = reading.page.locator("ul.search li > a")
        found = [links.nth(n).get_attribute("href") or "" for n in range(min(3, links.count()))]
        if not answers & {each.partition(".html")[0] for each in found}:
            missed[question] = found
    assert missed == {} and reading.faults == []
