"""A real Chromium without a window, and its complaints."""

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
    """The Chromium of the machine; without one the test is left out, which it may not be where CI is set."""
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
    """A page that remembers everything the browser asked for, and every complaint."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    @property
    def strangers(self) -> set[str]:
        """Hosts other than that of the page which were asked for something."""
        home = urlsplit(self.page.url).netloc
        return {urlsplit(url).netloc for url in self.asked} - {home}

    def text(self, selector: str) -> str:
        """The text of the first such element, visible or not, in one line."""
        return " ".join((self.page.locator(selector).first.text_content() or "").split())


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """The page at `url` in its own context."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(PATIENCE)
    tab = Tab(context.new_page())
    try:
        tab.page.goto(url)
        yield tab
    finally:
        context.close()
