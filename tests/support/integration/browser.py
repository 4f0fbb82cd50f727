"""Run a real Chromium without a window, and collect its complaints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
PATIENCE = 60_000  # milliseconds

expect.set_options(timeout=PATIENCE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the Chromium of the machine. If there is none, skip the test, or fail it in CI."""
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing; with CI set this test may not be left out (Debian package: chromium)")
        pytest.skip("chromium is not installed (Debian package: chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """Hold a page, and record every request and complaint of the browser.

    Attributes:
        page: The page of Playwright.
        complaints: Messages of the console, and errors of the page.
        asked: URLs that the browser asked for.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    @property
    def strangers(self) -> set[str]:
        """Return hosts other than the page's own that were asked for something."""
        home = urlsplit(self.page.url).netloc
        return {urlsplit(url).netloc for url in self.asked} - {home}

    def text(self, selector: str) -> str:
        """Return the text of the first matching element, visible or not, in one line."""
        return " ".join((self.page.locator(selector).first.text_content() or "").split())


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """Open the page at `url` in its own context."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(PATIENCE)
    tab = Tab(context.new_page())
    try:
        tab.page.goto(url)
        yield tab
    finally:
        context.close()
