"""Use the status page in a real browser, with and without scripts, by keyboard and by screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from streameval import Evaluator
from streameval.config.model import Http
from streameval.events import RankingDecoder
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from streameval.ope.report import Estimate, Report
from streameval.service.http.auth import Security
from streameval.service.http.server import HttpServer
from streameval.service.status import DaemonStatus
from support.asking import asking, report_of
from support.factories import NOW, View, make_published, make_report, with_profiles
from support.integration.browser import DESKTOP, PHONE, Tab, chromium, opened
from support.ports import free_port
from support.simulated_hours import hours, hours_of_a_ramp

OPEN_ALL = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 2},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def evaluated() -> DaemonStatus:
    """Return the status of a daemon after 20,000 simulated events, as if they took more than a week."""
    *_, last = hours(20_000)
    return replace(last, report=with_profiles(last.reported))


@pytest.fixture
def view(evaluated: DaemonStatus) -> View:
    return View(evaluated)


@pytest.fixture
def server(view: View) -> Iterator[HttpServer]:
    with HttpServer(view, port=0) as server:
        yield server


def test_the_page_shows_the_numbers_of_the_report(browser: Browser, server: HttpServer) -> None:
    with asking(server.url) as client:
        report = msgspec.convert(report_of(client), type=Report)
    with opened(browser, server.url) as tab:
        shown = rows(tab)
    assert len(shown) == len(report.estimates)
    for label, (value, ends) in shown.items():
        estimate = report.get(*label)
        assert value == rounded(estimate.value, value)
        assert ends == f"{rounded(estimate.lower, value)} to {rounded(estimate.upper, value)}"
    assert {policy for policy, _, _ in shown} == {"logging", "for-rock-fans", "for-jazz-fans", "for-metal-fans"}


def rows(tab: Tab) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return every value of the page with its interval, by policy, estimator and average."""
    read = """details => details.map(section => [...section.querySelectorAll("table.chart")].map(table =>
      [...table.tBodies[0].rows].map(row => [
        row.cells[0].firstChild.data.trim(), table.caption.textContent,
        section.querySelector("h2").firstChild.data.trim(),
        row.querySelector("b").textContent, row.querySelector(".range").textContent])))"""
    sections = tab.page.eval_on_selector_all("details.card", read)
    return {
        (policy, estimator, average): (value, ends)
        for section in sections
        for table in section
        for policy, estimator, average, value, ends in table
    }


def rounded(value: float | None, like: str, sign: str = "") -> str:
    """Return a value with as many decimals as the text `like`."""
    return f"{value:{sign}.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize(("average", "estimator"), [("mixture", "stratified_ips"), ("window", "snips")])
def test_the_top_shows_the_lifts_of_the_report(
    browser: Browser, server: HttpServer, view: View, average: str, estimator: str
) -> None:
    report = view.published.report
    assert report is not None
    with opened(browser, f"{server.url}/?average={average}&estimator={estimator}") as tab:
        texts = tab.page.locator("table.lone tbody tr").all_inner_texts()
        promotion = tab.text("table.texts tbody")
    candidates = [row.policy for row in report.policies if not row.production]
    assert len(texts) == len(candidates)
    for policy, text in zip(candidates, texts, strict=True):
        estimate: Estimate = report.get(policy, estimator, average)
        name, value, low, _, high = text.split()
        assert name == policy
        assert value == rounded(estimate.lift, value, "+")
        assert (low, high) == (rounded(estimate.lift_lower, value, "+"), rounded(estimate.lift_upper, value, "+"))
    for decision in report.promotion:
        assert decision.reason in promotion
    assert promotion.count(", promotable since") == sum(decision.promotable for decision in report.promotion) > 0


def later(now: DaemonStatus, events: int, **fields: Any) -> DaemonStatus:
    """Return a status shortly after `now`."""
    assert now.report is not None
    counts = msgspec.structs.replace(now.report.events, accepted=events)
    report = msgspec.structs.replace(now.report, events=counts, **fields)
    return replace(now, at=now.at + 1.0, report=report)


def test_new_numbers_appear_without_a_reload_or_an_error(browser: Browser, server: HttpServer, view: View) -> None:
    with opened(browser, server.url) as tab:
        tab.page.evaluate("window.loadedOnce = true")
        tab.page.locator("#open-1").click()
        for events in (21_000, 22_000):
            view.published = later(view.published, events)
            expect(tab.page.locator(".facts dd").first).to_have_text(f"{events:,}")
        assert tab.page.evaluate("window.loadedOnce") is True
        assert tab.page.locator("#numbers-1").get_attribute("open") is not None, "what was opened stays open"
        assert tab.complaints == []
        assert tab.strangers == set()
        assert {url.removeprefix(server.url) for url in tab.asked} == {"/", "/live"}


def test_a_shorter_time_range_is_chosen_and_stays(browser: Browser, server: HttpServer, view: View) -> None:
    with opened(browser, server.url) as tab:
        tab.page.get_by_role("navigation", name="Time range").get_by_role("link", name="1 h", exact=True).click()
        expect(tab.page.locator("a[aria-current=true]", has_text="1 h")).to_have_count(1)
        tab.page.get_by_role("link", name="window", exact=True).first.click()
        expect(tab.page.locator("a[aria-current=true]", has_text="1 h")).to_have_count(1)
        expect(tab.page.locator(".axis").first).to_contain_text("min ago")


def test_the_page_works_without_scripts(browser: Browser, server: HttpServer) -> None:
    with opened(browser, server.url, java_script_enabled=False) as tab:
        refresh = tab.page.locator("meta[http-equiv=refresh]")
        assert refresh.get_attribute("content") == "10"
        expect(tab.page.locator("table.lone tbody tr")).to_have_count(3)
        expect(tab.page.locator(".facts dd").first).to_have_text("20,000")
        expect(tab.page.locator("#pause")).to_be_hidden()
        tab.page.get_by_role("link", name="adaptive_window", exact=True).first.click()
        expect(tab.page.locator("table.lone caption")).to_contain_text("on adaptive_window")
        assert tab.complaints == []


def test_the_page_works_with_the_keyboard(browser: Browser, server: HttpServer, view: View) -> None:
    with opened(browser, server.url) as tab:
        tab.page.keyboard.press("Tab")
        expect(tab.page.locator("#pause")).to_be_focused()
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#pause")).to_have_attribute("aria-pressed", "true")
        view.published = later(view.published, 21_000)
        tab.page.wait_for_timeout(3_000)
        expect(tab.page.locator(".facts dd").first).to_have_text("20,000")
        tab.page.keyboard.press("Space")
        expect(tab.page.locator(".facts dd").first).to_have_text("21,000")
        for _ in range(3):  # over the bounds, rules and margins
            tab.page.keyboard.press("Tab")
        expect(tab.page.locator("#average-choice-2")).to_be_focused()
        view.published = later(view.published, 22_000)
        expect(tab.page.locator(".facts dd").first).to_have_text("22,000")
        expect(tab.page.locator("#average-choice-2")).to_be_focused()
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("table.lone caption")).to_contain_text("on window")


def test_screen_readers_announce_decisions_and_not_every_number(
    browser: Browser, server: HttpServer, view: View
) -> None:
    assert view.published.report is not None
    decisions = tuple(msgspec.structs.replace(result, promotable=False) for result in view.published.report.promotion)
    with opened(browser, server.url) as tab:
        view.published = later(view.published, 21_000)
        expect(tab.page.locator(".facts dd").first).to_have_text("21,000")
        assert tab.text("#news") == ""
        view.published = later(view.published, 22_000, promotion=decisions)
        expect(tab.page.get_by_role("status")).to_have_text("Ready. No candidate is promotable.")


def test_the_page_notices_that_the_daemon_went_away_and_came_back(browser: Browser, view: View) -> None:
    port = free_port()
    with HttpServer(view, port=port) as server:
        context = opened(browser, server.url)
        tab = context.__enter__()
        expect(tab.page.get_by_role("alert")).to_be_hidden()
    try:
        expect(tab.page.get_by_role("alert")).to_have_text(
            "The daemon does not answer; this page shows its last numbers."
        )
        view.published = later(view.published, 21_000)
        with HttpServer(view, port=port):
            expect(tab.page.locator(".facts dd").first).to_have_text("21,000")
            expect(tab.page.get_by_role("alert")).to_be_hidden()
    finally:
        context.__exit__(None, None, None)


def test_with_a_token_from_a_proxy_the_page_and_its_stream_are_shown(
    browser: Browser, view: View, tmp_path: Path
) -> None:
    token = "7f3a" * 16
    (tmp_path / "tokens").write_text(token)
    security = Security(Http(token_file=str(tmp_path / "tokens")))
    headers = {"authorization": f"Bearer {token}"}
    with (
        HttpServer(view, port=0, security=security) as server,
        opened(browser, server.url, extra_http_headers=headers) as tab,
    ):
        view.published = later(view.published, 21_000)
        expect(tab.page.locator(".facts dd").first).to_have_text("21,000")


@pytest.mark.parametrize("look", [pytest.param(look, marks=[pytest.mark.slow] * (look != "light")) for look in LOOKS])
def test_axe_finds_no_violation(browser: Browser, server: HttpServer, look: str) -> None:
    with opened(browser, server.url, **LOOKS[look]) as tab:
        tab.page.evaluate(OPEN_ALL)
        axe_results = Axe().run(tab.page)
    assert axe_results.violations_count == 0, axe_results.generate_report()


def test_nothing_sticks_out_of_a_phone(browser: Browser, server: HttpServer) -> None:
    with opened(browser, server.url, **LOOKS["phone"]) as tab:
        tab.page.evaluate(OPEN_ALL)
        assert tab.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


OVER_THE_EDGE = """[...document.querySelectorAll('.chart td.value')]
    .filter(cell => cell.getClientRects().length && cell.scrollWidth > cell.clientWidth + 1)
    .map(cell => cell.innerText)"""


@pytest.fixture(scope="module")
def ramp() -> DaemonStatus:
    """Return the status of a daemon after 12,000 events of a ramp."""
    *_, last = hours_of_a_ramp(12_000)
    return last


@pytest.mark.parametrize("look", ["light", "phone"])
def test_lifts_and_guardrails_of_a_ramp_stay_inside_their_card_and_axe_finds_no_violation(
    browser: Browser, ramp: DaemonStatus, look: str
) -> None:
    with HttpServer(View(ramp), port=0) as server, opened(browser, server.url, **LOOKS[look]) as tab:
        assert "guardrail kept" in tab.text("#rewards")
        assert tab.page.evaluate(OVER_THE_EDGE) == []
        assert tab.page.evaluate("document.documentElement.scrollWidth") == LOOKS[look]["viewport"]["width"]
        axe_results = Axe().run(tab.page)
    assert axe_results.violations_count == 0, axe_results.generate_report()


def test_long_strange_names_stay_inside(browser: Browser) -> None:
    name = "<b>challenger</b>-" + "x" * 80
    report = msgspec.json.decode(make_report().to_json().replace(b"challenger-a", name.encode()), type=Report)
    with (
        HttpServer(View(make_published(report, at=NOW)), port=0) as server,
        opened(browser, server.url, **LOOKS["phone"]) as tab,
    ):
        assert tab.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert name in tab.text("table.lone tbody")
        assert tab.complaints == []


def test_a_learned_examination_curve_is_a_table_that_fits_a_phone(browser: Browser) -> None:
    recommender = SimulatedRecommender(
        SimulatedSettings(world="rankings", events=12_000, rate=0, exploration=0.5, candidates=["new"])
    )
    ranking = {"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": "swaps", "ranks": 6}}
    learner = Evaluator(["new"], ranking=ranking)
    learner.update(RankingDecoder(["new"]).decode_batch(list(recommender.lines())))
    report = learner.report()
    with HttpServer(View(make_published(report)), port=0) as server, opened(browser, server.url, viewport=PHONE) as tab:
        section = tab.page.locator("section", has=tab.page.locator("#examination"))
        expect(section).to_be_visible()
        assert section.locator("tbody th").all_inner_texts() == [str(row.rank) for row in report.examination]
        assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
