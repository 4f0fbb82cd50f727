from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import httpx
import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from streameval.errors import StreamevalError
from streameval.ingest.base import SourceStatus
from streameval.ope.answer import answers
from streameval.ope.report import PolicyCounts, Report
from streameval.service.http import server as http
from streameval.service.http.server import HttpServer
from streameval.service.shown import MAX_REPORTED, shown_candidates
from streameval.service.status import DaemonStatus, History
from streameval.service.status_page.page import render
from support.factories import NOW, View, make_estimate, make_published, make_report, make_unknown
from support.ports import free_port

ROUTES = ("/", "/metrics", "/livez", "/healthz", "/readyz", "/api/v1/report", "/api/v1/history", "/openapi.json")


@pytest.fixture(scope="module")
def view() -> View:
    return View(make_published(make_report()))


@pytest.fixture(scope="module")
def client(view: View) -> Iterator[httpx.Client]:
    with HttpServer(view, port=0) as server, httpx.Client(base_url=server.url, trust_env=False, timeout=60.0) as client:
        yield client


@pytest.fixture
def unready_client() -> Iterator[httpx.Client]:
    detail = "no broker answers at localhost:9092"
    lost = make_published(None, detail=detail, source=SourceStatus(reached=False, detail=detail))
    with (
        HttpServer(View(lost, healthy=False), port=0) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60.0) as client,
    ):
        yield client


def test_metrics_are_prometheus_text(client: httpx.Client) -> None:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (
        'streameval_policy_value{average="cumulative",estimator="ips",policy="challenger-a",reward="reward"}'
        in answer.text
    )


PLAIN, PLAIN_1, OPENMETRICS = (
    "text/plain; version=0.0.4",
    "text/plain; version=1.0.0",
    "application/openmetrics-text; version=1.0.0",
)


def test_metrics_of_some_policies_leave_out_the_others(client: httpx.Client) -> None:
    def policies(path: str) -> set[str]:
        return set(re.findall(r'policy="(.*?)"', client.get(path).text))

    every = policies("/metrics")
    assert len(every) > 1
    one = min(every)
    assert policies(f"/metrics?policy={one}") == {one}
    assert policies("/metrics?" + "&".join(f"policy={name}" for name in every)) == every
    assert policies("/metrics?policy=unknown") == set()
    assert "streameval_ready" in client.get("/metrics?policy=unknown").text
    assert policies("/metrics?top=0") == {"logging"}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/html, text/plain;version=0.0.4;q=0.5", PLAIN),
        ("text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5", PLAIN_1),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;q=0.2,text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text;version=2.0.0", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("application/openmetrics-text;version=1.0.0;q=oops, ;;q, text/plain", PLAIN),
    ],
)
def test_metrics_come_in_the_format_that_the_client_prefers(client: httpx.Client, accept: str, expected: str) -> None:
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(expected)
    assert answer.text.endswith("# EOF\n") == expected.startswith("application/openmetrics-text")
    assert "accept" in answer.headers["vary"]


@pytest.mark.parametrize(
    ("accepted", "used"), [("gzip", "gzip"), ("gzip;q=1, zstd;q=0.5", "zstd"), ("zstd;q=0, gzip", "gzip"), ("br", None)]
)
def test_metrics_are_compressed_for_clients_that_accept_it(
    client: httpx.Client, accepted: str, used: str | None
) -> None:
    with client.stream("GET", "/metrics", headers={"accept-encoding": accepted}) as answer:
        raw = b"".join(answer.iter_raw())
    decoded = {"gzip": gzip.decompress, "zstd": lambda body: zstandard.decompress(body), None: bytes}[used](raw)
    assert answer.headers.get("content-encoding") == used
    assert b"streameval_ready 1.0" in decoded
    assert used is None or len(raw) < len(decoded) / 5


def test_the_report_is_served_as_json(client: httpx.Client) -> None:
    answer = client.get("/api/v1/report")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(make_report().to_json())


def test_a_report_of_some_candidates_leaves_out_the_others() -> None:
    report = make_report(12)
    best = [each.policy for each in answers(report)]
    with HttpServer(View(make_published(report)), port=0) as server, httpx.Client(base_url=server.url) as client:

        def candidates(query: str) -> tuple[list[str], str | None]:
            answer = client.get(f"/api/v1/report{query}")
            shown = msgspec.json.decode(answer.content, type=Report)
            assert shown.events == report.events
            assert {row.policy for row in shown.estimates} == {counts.policy for counts in shown.policies}
            names = [counts.policy for counts in shown.policies if not counts.production]
            return sorted(names), answer.headers.get("streameval-left-out")

        assert candidates("") == candidates("?top=all") == candidates("?top=12") == (sorted(best), None)
        assert candidates("?top=3") == (sorted(best[:3]), "9")
        assert candidates("?top=0") == ([], "12")
        assert candidates(f"?policy={best[4]}&policy={best[2]}") == (sorted([best[4], best[2]]), "10")


def test_more_than_a_thousand_candidates_are_left_out_of_a_report_by_default() -> None:
    for count, shown in ((1000, 1000), (1001, 100)):
        status = make_published(make_report(count, ("ips",), ("cumulative",)))
        names = shown_candidates(status, [], "", MAX_REPORTED)
        assert len(names or status.reported.policies[1:]) == shown


def test_the_history_has_estimates_and_decisions_of_the_chosen_policies_and_times(
    view: View, client: httpx.Client
) -> None:
    report = make_report()
    grown = History().after(NOW - 20.0, replace(report, promotion=())).after(NOW - 10.0, report).after(NOW, report)
    view.published = make_published(report, history=grown)
    at = datetime.fromtimestamp(NOW - 10.0, UTC).isoformat()
    answer = client.get("/api/v1/history", params={"policy": "challenger-a", "to": at}).json()
    assert answer["at"] == [NOW - 20.0, NOW - 10.0]
    estimate = next(estimate for estimate in report.estimates if estimate.policy == "challenger-a")
    shown = answer["estimates"][0]
    assert (shown["policy"], shown["estimator"]) == (estimate.policy, estimate.estimator)
    assert (shown["value"][1], shown["lift_lower"][1]) == (estimate.value, estimate.lift_lower)
    assert {row["policy"] for row in answer["estimates"]} == {"challenger-a"}
    decision = next(decision for decision in report.promotion if decision.policy == "challenger-a")
    assert answer["decisions"] == [{"policy": "challenger-a", "rule": decision.rule, "state": [None, decision.state]}]
    everything = client.get("/api/v1/history", params={"from": NOW - 5.0}).json()
    assert everything["at"] == [NOW]
    assert len(everything["estimates"]) == len(report.estimates)


@pytest.mark.parametrize(
    "moment", ["2026-01-31T12:00:00+01:00", "2026-01-31 12:00+0100", "2026-01-31%2012:00:00.5%2B01"]
)
def test_a_plus_in_a_time_need_not_be_encoded(view: View, client: httpx.Client, moment: str) -> None:
    eleven = datetime(2026, 1, 31, 11, tzinfo=UTC).timestamp()
    history = History().after(eleven - 1.0, make_report()).after(eleven + 1.0, make_report())
    view.published = make_published(make_report(), history=history)
    assert client.get(f"/api/v1/history?from={moment}").json()["at"] == [eleven + 1.0]


@pytest.mark.parametrize("moment", ["yesterday", "nan", ""])
def test_a_time_of_the_history_that_is_none_is_refused(client: httpx.Client, moment: str) -> None:
    answer = client.get("/api/v1/history", params={"from": moment})
    assert answer.status_code == 400
    assert "from: expected epoch seconds" in answer.json()["error"]


def test_the_described_paths_are_the_ones_that_are_served(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert {*described["paths"]} == {*ROUTES, "/live", "/-/reload"}
    assert described["components"]["schemas"]["Report"]["properties"].keys() == {*make_report().__struct_fields__}


def test_every_answer_is_as_described(client: httpx.Client, tmp_path: Path) -> None:
    """Each request is answered with a status, a type and a body that the description has."""
    command = [*(sys.executable, "-m", "schemathesis.cli", "run", f"{client.base_url}/openapi.json", "--no-color")]
    command += ["--exclude-path", "/live", "--seed", "1", "--max-examples", "20"]  # a stream does not end
    command += ["--exclude-checks", "negative_data_rejection"]  # any text is a list of names
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Tested: 8" in ran.stdout, "all but the stream and the description itself"


def test_a_working_daemon_is_healthy_and_ready(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"healthy": True, "seconds_since_last_turn": 0.0}
    assert client.get("/readyz").json() == {"ready": True, "reason": ""}
    assert client.get("/livez").json() == {"live": True, "reason": ""}


def test_a_daemon_whose_source_is_stuck_is_healthy_and_not_alive(
    view: View, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "source_stalled", "the source is not reached, for 700 s: connecting")
    assert client.get("/healthz").status_code == 200
    answer = client.get("/livez")
    assert (answer.status_code, answer.json()) == (503, {"live": False, "reason": view.source_stalled})


@pytest.mark.parametrize("route", ["/livez", "/healthz", "/readyz", "/api/v1/report"])
def test_a_daemon_in_trouble_answers_503_with_the_reason(unready_client: httpx.Client, route: str) -> None:
    answer = unready_client.get(route)
    assert answer.status_code == 503
    if route == "/healthz":
        assert answer.json() == {"healthy": False, "seconds_since_last_turn": 90.0}
    elif route == "/livez":
        assert answer.json() == {"live": False, "reason": "the loop has not turned for 90.0 s"}
    else:
        assert answer.json()["reason"] == "no broker answers at localhost:9092"


def test_metrics_and_page_are_served_before_the_source_is_ready(unready_client: httpx.Client) -> None:
    assert "streameval_ready 0.0" in unready_client.get("/metrics").text
    page = unready_client.get("/").text
    assert "not ready: no broker answers at localhost:9092" in page
    assert "<title>not ready · streameval</title>" in page


@pytest.mark.parametrize("path", ["/favicon.ico", "/metrics/", "/api", "/healthz/x", "/..%2f..%2fetc/passwd"])
def test_an_unknown_path_is_404(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("route", ROUTES)
def test_head_answers_like_get_without_a_body(client: httpx.Client, route: str) -> None:
    head = client.head(route)
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == client.get(route).headers["content-type"]


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_can_be_changed_from_outside(client: httpx.Client, route: str) -> None:
    assert client.post(route).status_code == 405
    assert client.post(route, content=b"x").status_code == 405


def test_without_a_token_nobody_can_ask_for_a_reload(client: httpx.Client) -> None:
    assert client.get("/-/reload").status_code == 405
    answer = client.post("/-/reload")
    assert (answer.status_code, answer.json()["reloaded"]) == (403, False)
    assert "http.token_file" in answer.json()["reason"]


@pytest.mark.parametrize("path", [*ROUTES, "/nowhere"])
def test_every_answer_carries_the_security_headers(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StreamevalError, match=f"cannot serve on 127.0.0.1:{port}: the port is in use") as caught:
            HttpServer(View(make_published()), port=port)
    assert f"has port {port}" in caught.value.hint
    assert "http.port" in caught.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_here_is_an_error_with_a_hint(host: str) -> None:
    with pytest.raises(StreamevalError, match=f"cannot serve on {host}:0") as caught:
        HttpServer(View(make_published()), host=host, port=0)
    assert "http.host" in caught.value.hint


def test_only_this_machine_is_served_unless_configured() -> None:
    with HttpServer(View(make_published()), port=0) as server:
        assert server.address[0] == "127.0.0.1"
        assert server.url == f"http://127.0.0.1:{server.address[1]}"


def test_ipv6_is_served() -> None:
    try:
        server = HttpServer(View(make_published()), host="::1", port=0)
    except StreamevalError:
        pytest.skip("this machine has no IPv6")
    with server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(server.url + "/metrics", trust_env=False, timeout=60.0).status_code == 200


def test_a_stopped_server_frees_its_port() -> None:
    port = free_port()
    for _ in range(2):
        with HttpServer(View(make_published()), port=port) as server:
            assert httpx.get(server.url + "/healthz", trust_env=False, timeout=60.0).status_code == 200


def test_idle_connections_do_not_delay_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STOP_SECONDS", 60)  # as long as an open request may take
    with HttpServer(View(make_published()), port=0) as server:
        idle = [socket.create_connection(server.address) for _ in range(50)]
        assert httpx.get(server.url + "/healthz", trust_env=False, timeout=60.0).status_code == 200
        started = time.monotonic()
    assert time.monotonic() - started < 30
    for connection in idle:
        connection.close()


class Reader(HTMLParser):
    """Collect the contents of a page, and check that its elements are closed in order."""

    VOID = ("meta", "line", "circle", "link", "br", "col")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.inline: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("style", "script"):
            self.inline[self._open[-1]] = data
        elif data.strip():
            self.text.append(" ".join(data.split()))


def read(report: Report | None, **fields: object) -> Reader:
    return Reader(render(make_published(report, **fields)))


def test_the_page_shows_every_value_with_its_interval() -> None:
    report = make_report()
    text = read(report).text
    for estimate in report.estimates:
        assert f"{estimate.value:.4f}" in text
        assert f"{estimate.lower:.4f} to {estimate.upper:.4f}" in text
    assert {"logging", "challenger-a", "challenger-b", "challenger-c"} <= set(text)
    assert "Against production: logging" in text


def test_the_page_shows_adaptation_counts_lag_rejections_and_the_age_of_the_newest_event() -> None:
    text = read(make_report()).text
    assert "looks back over 4,200 events" in text
    assert "119,000" in text
    assert "0.83 %" in text
    assert "rejected: malformed" in text
    assert "60,001" in text
    assert "2.0 s ago" in text


def test_a_mean_weight_away_from_1_is_explained_on_the_page() -> None:
    report = make_report()
    off = tuple(replace(estimate, importance_weight_mean=0.5) for estimate in report.estimates)
    assert "0.5 should be 1" in read(replace(report, estimates=off)).text
    assert "should be 1" not in " ".join(read(report).text)


def test_a_candidate_with_wrong_weights_is_marked_in_comparisons() -> None:
    report = make_report()
    off = tuple(
        replace(estimate, importance_weight_mean=1.5) if estimate.policy == "challenger-b" else estimate
        for estimate in report.estimates
    )
    assert read(replace(report, estimates=off)).text.count("weights off") == 1
    assert "weights off" not in read(report).text


def test_names_from_the_configuration_are_text_and_never_markup() -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    report = replace(
        make_report(),
        production=evil,
        policies=(PolicyCounts(evil, True, 1, 0), PolicyCounts(evil + "2", False, 1, 0)),
        estimates=tuple(make_estimate(policy, evil, evil) for policy in (evil, evil + "2")),
    )
    page = read(report, detail=evil, ready=False, source=SourceStatus(reached=False, detail=evil))
    assert evil in page.text
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "alert" not in page.inline["script"]


def test_the_page_needs_no_other_files() -> None:
    page = read(make_report())
    links = [value for _, name, value in page.attributes if name in ("href", "src")]
    assert all(link and link.startswith(("#", "?", "./")) for link in links), "also where a proxy puts it elsewhere"
    assert not [tag for tag, name, _ in page.attributes if name == "style"], "the policy would not allow it"


def hash_of(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def test_the_policy_allows_exactly_the_style_and_script_of_the_page(client: httpx.Client) -> None:
    answer = client.get("/")
    policy, inline = answer.headers["content-security-policy"], Reader(answer.text).inline
    assert f"style-src '{hash_of(inline['style'])}'" in policy
    assert f"script-src '{hash_of(inline['script'])}'" in policy


def test_identifiers_on_the_page_are_unique_and_references_lead_to_them() -> None:
    page = read(make_report())
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    referred = [value for _, name, value in page.attributes if name == "aria-labelledby"]
    jumps = [value[1:] for _, name, value in page.attributes if name == "href" and value and value[0] == "#"]
    assert {*referred, *jumps} <= set(ids)


@pytest.mark.parametrize("report", [None, make_report(0), make_report(1, ("ips",), ("window",)), make_report(25)])
def test_the_page_is_well_formed_for_any_number_of_policies(report: Report | None) -> None:
    assert "Pipeline" in read(report).text


def test_the_page_renders_without_evidence() -> None:
    report = make_report()
    empty = tuple(make_unknown(estimate.policy, estimate.estimator, estimate.average) for estimate in report.estimates)
    text = read(replace(report, estimates=empty)).text
    assert not [piece for piece in text if re.search(r"\bnan\b|\bNone\b|\binf\b", piece)]


def test_an_event_from_the_future_is_shown_as_ahead() -> None:
    assert any("ahead" in piece for piece in read(make_report(), at=NOW - 60.0).text)


def test_the_page_is_compressed_for_clients_that_accept_it(client: httpx.Client) -> None:
    packed, plain = client.get("/"), client.get("/", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text
    assert int(packed.headers["content-length"]) < len(plain.content) / 5


def test_the_page_is_titled_and_scales_to_a_phone(client: httpx.Client) -> None:
    page = client.get("/").text
    assert "<title>streameval</title>" in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_every_answer_reads_the_latest_published_status(client: httpx.Client, view: View) -> None:
    before: DaemonStatus = view.published
    try:
        view.published = make_published(None, detail="the broker went away")
        assert client.get("/readyz").json() == {"ready": False, "reason": "the broker went away"}
        assert "streameval_policy_value" not in client.get("/metrics").text
    finally:
        view.published = before
