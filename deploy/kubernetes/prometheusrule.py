"""Writes prometheusrule.yaml: the groups of ../prometheus/rules for the Prometheus Operator (`make manifests`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "rules"
HEAD = "# Written by `make manifests` from ../prometheus/rules: change those.\n"


def manifest() -> dict[str, Any]:
    """All groups, recorded series before the alerts that use them."""
    files = sorted(RULES.glob("*.yml"), key=lambda path: (path.stem != "recording", path.stem))
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "streameval"},
        "spec": {"groups": [group for path in files for group in yaml.safe_load(path.read_text())["groups"]]},
    }


if __name__ == "__main__":
    text = yaml.safe_dump(manifest(), sort_keys=False, width=140, allow_unicode=True)
    (HERE / "prometheusrule.yaml").write_text(HEAD + text)
