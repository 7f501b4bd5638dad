"""A headless Chromium for tests of pages; without one they are skipped, on CI they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

Scheme = Literal["light", "dark"]
PATIENCE = 15_000
"""Milliseconds: how long a page may take to answer on a busy machine."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable() -> str:
    """The installed browser; skips the test if there is none, and fails it on CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    told = "needs a browser: run .ci/tools, which installs Debian's chromium"
    if os.environ.get("CI"):
        pytest.fail(told)
    pytest.skip(told)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a new, empty profile."""
    path = executable()
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page of a file, what it asked for, and what went wrong: errors, exceptions, dialogs."""

    def __init__(
        self,
        browser: Browser,
        path: Path,
        *,
        scheme: Scheme = "light",
        width: int = 1440,
        script: str = "",
        slowdown: int = 1,
    ) -> None:
        """Open a page, as on a CPU `slowdown` times slower; `script` runs before any of its own."""
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(
            color_scheme=scheme,
            viewport={"width": width, "height": 1000},
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: self._dialog(dialog))
        self.page.on("request", lambda request: self.requests.append(request.url))
        session = self.context.new_cdp_session(self.page)
        session.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
        self.page.add_init_script(script)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def _dialog(self, dialog: object) -> None:
        self.faults.append(f"dialog: {dialog}")

    def drawn(self, level: str, graph: int = 0) -> None:
        """Wait until a graph has been drawn at this level: where it can be seen, it is."""
        self.page.locator("details.graph").nth(graph).scroll_into_view_if_needed()
        self.page.wait_for_selector(
            f"details.graph >> nth={graph} >> css=:scope[data-drawn={level}]"
        )
