"""Writes prometheusrule.yaml: the groups of ../prometheus/rules for the Prometheus Operator (`make manifests`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PROMETHEUS = HERE.parent / "prometheus"
RULES = PROMETHEUS / "rules"
HEAD = "# Written by `make manifests` from ../prometheus/rules: change those.\n"


def manifest() -> dict[str, Any]:
    """All groups, recorded series before the alerts that use them, evaluated as often as ../prometheus does it.

    A group without an interval would take that of a Prometheus which is not ours, 30 s by default, and an alert that is
    there within a minute by the one could take two by the other.
    """
    every = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["evaluation_interval"]
    files = sorted(RULES.glob("*.yml"), key=lambda path: (path.stem != "recording", path.stem))
    groups = [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "streameval"},
        "spec": {"groups": [{"name": group["name"], "interval": every} | group for group in groups]},
    }


if __name__ == "__main__":
    text = yaml.safe_dump(manifest(), sort_keys=False, width=140, allow_unicode=True)
    (HERE / "prometheusrule.yaml").write_text(HEAD + text)
