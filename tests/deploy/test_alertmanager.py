"""Check the receivers of each alert with Alertmanager's own tool."""

from __future__ import annotations

import re

import pytest
import yaml

from support.deployed import ALERTMANAGER, rules
from support.programs import output, program

ALERTS = rules("alert")
CONFIG = yaml.safe_load(ALERTMANAGER.read_text())
PAGES = {"StreamevalPromotedPolicyWorse", "StreamevalProductionWorse"}
"""Alerts that page an operator."""
INFORMATION = {"StreamevalDriftDetected", "StreamevalPromotableByEstimatedPropensities"}
"""Alerts that only inform."""


@pytest.fixture(scope="module")
def amtool() -> str:
    return program("amtool", "prometheus-alertmanager")


def test_alertmanager_accepts_its_configuration(amtool: str) -> None:
    text = output(amtool, "check-config", str(ALERTMANAGER))
    assert f"{len(CONFIG['inhibit_rules'])} inhibit rules" in text
    assert "3 receivers" in text


@pytest.mark.parametrize("alert", ALERTS)
def test_a_promoted_policy_that_became_worse_pages_and_information_is_not_a_ticket(amtool: str, alert: str) -> None:
    labels = [f"alertname={alert}", f"severity={ALERTS[alert]['labels']['severity']}", "instance=host:9108"]
    receiver = "pager" if alert in PAGES else "information" if alert in INFORMATION else "tickets"
    output(
        amtool, "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"--verify.receivers={receiver}", *labels
    )


def test_an_alert_without_a_severity_is_not_lost(amtool: str) -> None:
    route = (f"--config.file={ALERTMANAGER}", "--verify.receivers=tickets", "alertname=SomethingOfYours")
    output(amtool, "config", "routes", "test", *route)


def test_inhibitions_speak_of_alerts_that_exist() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            label, pattern = re.fullmatch(r'(\w+)(?:=|!=|=~)"(.*)"', matcher).groups()
            if label == "alertname":
                assert [alert for alert in ALERTS if re.fullmatch(pattern, alert)], matcher


def test_every_receiver_gets_something() -> None:
    routed = {CONFIG["route"]["receiver"], *(route["receiver"] for route in CONFIG["route"]["routes"])}
    assert routed == {receiver["name"] for receiver in CONFIG["receivers"]}
