"""Build the site of `make docs` with strict checks of links: everything public is in it, and search finds it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import streameval
from streameval.config.model import Config
from streameval.config.removed import without_removed
from support.commands import command
from support.deployed import rules
from support.http_servers import serving
from support.integration.browser import DESKTOP, PHONE, chromium, opened
from support.paths import ROOT
from support.programs import output

SOURCES = ROOT / "deploy" / "site"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOURCES.exists(), reason="needs a checkout"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site. A warning, such as one about a link that leads nowhere, fails the build."""
    program = ROOT / ".venv-docs" / "bin" / "mkdocs"
    if not program.exists():
        missing = f"{program} is missing; `make test-all` installs it"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    directory = tmp_path_factory.mktemp("site")
    config = str(SOURCES / "mkdocs.yml")
    output(
        "env",
        f"PYTHONPATH={ROOT}",
        str(program),
        "build",
        "--strict",
        "--config-file",
        config,
        "--site-dir",
        str(directory),
    )
    return directory


def text(site: Path, page: str) -> str:
    return (site / "reference" / f"{page}.html").read_text()


def rows(html: str) -> list[list[str]]:
    """Return the texts of the cells of all tables."""
    table_rows = re.findall(r"<tr>\s*(<td>.*?)</tr>", html, re.DOTALL)
    return [
        [unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in re.split(r"</td>", row)[:-1]] for row in table_rows
    ]


def test_every_public_name_has_an_entry(site: Path) -> None:
    html = text(site, "python")
    assert [name for name in streameval.__all__ if f'id="streameval.{name}"' not in html] == []


def test_every_key_of_the_configuration_has_a_type_a_default_and_a_description(site: Path) -> None:
    html = text(site, "configuration")
    schema = without_removed(Config.model_json_schema())
    shown = rows(html)
    assert [row for row in shown if not all(row)] == []
    models: list[dict[str, Any]] = [
        definition for name, definition in schema["$defs"].items() if name != "DriftDetector"
    ]
    keys = [key for model in (schema, *models) for key in model.get("properties", ())]
    assert sorted(row[0] for row in shown) == sorted(keys)
    for name in Config.model_fields:
        section = html.partition(f'<h2 id="{name}"')[2].partition("<h2")[0]
        example = re.sub(r"<.*?>", "", section.partition('class="highlight"')[2])
        assert f"{name}:" in example, f"{name} has no example"


def test_every_metric_is_listed_with_its_help(site: Path) -> None:
    sections = tomllib.loads((ROOT / "streameval" / "service" / "metrics.toml").read_text())
    families = {name: help_text for section in sections.values() for name, (_, help_text) in section.items()}
    listed = {row[0]: row[2] for row in rows(text(site, "metrics"))}
    assert listed.keys() == families.keys()
    assert all(listed[name].replace("`", "") == help_text.replace("`", "") for name, help_text in families.items())


def test_every_command_is_listed_with_its_options(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    html = text(site, "cli")
    names = re.findall(r"^  ([a-z-]+) ", command(capfd, "--help").out.partition("Commands:")[2], re.MULTILINE)
    assert set(re.findall(r'<h2 id="streameval-([a-z-]+)"', html)) == set(names)
    for name in names:
        section = html.partition(f'id="streameval-{name}"')[2].partition("<h2")[0]
        options = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", command(capfd, name, "--help").out, re.MULTILINE)
        assert options
        assert set(options) <= set(re.findall(r"--[a-z-]+", section)), name


def test_every_alert_leads_to_its_runbook(site: Path) -> None:
    html = text(site, "runbooks")
    for alert in rules("alert"):
        assert f'href="../deploy/runbooks/{alert}.html"' in html
        assert (site / "deploy" / "runbooks" / f"{alert}.html").exists()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_search_finds_a_word_a_key_a_metric_and_a_class(address: str) -> None:
    searches = {
        "effective sample size": ("glossary.html", "#effective-sample-size"),
        "bootstrap_servers": ("reference/configuration.html", "#source-kafka"),
        "streameval_policy_promotable": ("reference/metrics.html", "#promotion"),
        "EmpiricalLikelihood": ("reference/python.html", "#streameval.EmpiricalLikelihood"),
        "StreamevalDataStale": ("deploy/runbooks/StreamevalDataStale.html", "streamevaldatastale"),
    }
    with chromium() as browser, opened(browser, f"{address}/index.html", viewport=DESKTOP) as tab:
        box = tab.page.get_by_role("textbox", name="Search")
        for query, (page, anchor) in searches.items():
            box.fill(query)
            box.press("End")  # the page searches when a key is released
            link = tab.page.locator(f'.md-search-result__link[href*="{page}"][href$="{anchor}"]')
            expect(link.first).to_be_attached(timeout=20_000)
        assert tab.complaints == []
        assert tab.strangers == set(), "no other host is asked for anything"


def test_wide_tables_fit_a_phone(address: str) -> None:
    with chromium() as browser, opened(browser, address, viewport=PHONE, is_mobile=True) as tab:
        for page in ("cli", "metrics", "report"):
            tab.page.goto(f"{address}/reference/{page}.html")
            assert tab.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], page
        assert tab.complaints == []
