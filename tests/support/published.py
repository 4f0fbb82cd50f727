"""Check manifests by kubeconform, against the schemas that Kubernetes and the operators publish in their Go modules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from support.go_toolchain import ENVIRONMENT, built, toolchain
from support.paths import TESTS

TOOLS = TESTS / "deploy" / "tools"
KINDS = {"ConfigMap", "Secret", "Service", "StatefulSet"}
"""Kinds of Kubernetes itself. Their schemas are in the module of its client, which Helm requires."""
WITHOUT_SCHEMA = "NetworkPolicy,PodDisruptionBudget"
"""Kinds that are not checked, because no module publishes their schemas. test_kubernetes asks for their fields."""
OPERATORS = {
    "github.com/argoproj/argo-rollouts@v1.8.3": "manifests/crds/*-crd.yaml",
    "github.com/fluxcd/flagger@v1.36.1": "artifacts/flagger/crd.yaml",
    "github.com/kubeflow/spark-operator/v2@v2.3.0": "config/crd/bases/*.yaml",
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd/*.yaml",
}
"""Modules of operators, and their definitions of resources."""


class Loader(yaml.CSafeLoader):
    """Load YAML, and read a plain `=` as text: PyYAML gives it a type of its own."""


Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: loader.construct_scalar(node))


class Kubeconform:
    """Run kubeconform with the published schemas, and refuse keys that they do not name."""

    def __init__(self, directory: Path) -> None:
        self._program = str(built(TOOLS, directory, "github.com/yannh/kubeconform/cmd/kubeconform"))
        for (kind, version), schema in (*kubernetes_schemas(), *operator_schemas()):
            (directory / f"{kind.lower()}-{version}.json").write_text(json.dumps(schema))
        self._schemas = f"{directory}/{{{{.ResourceKind}}}}-{{{{.ResourceAPIVersion}}}}.json"

    def complaints(self, *objects: dict[str, Any]) -> str:
        """Return what is wrong with the objects, or an empty text."""
        command = [self._program, "-strict", "-skip", WITHOUT_SCHEMA, "-schema-location", self._schemas]
        manifests = yaml.safe_dump_all(objects)
        ran = subprocess.run(command, input=manifests, capture_output=True, text=True, check=False, timeout=120)
        assert bool(ran.stdout) == bool(ran.returncode), ran.stderr
        return ran.stdout


def kubernetes_schemas() -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield kind and version with the schema, for the kinds of Kubernetes itself."""
    client = go("list", "-m", "-f", "{{.Dir}}", "k8s.io/client-go").strip()
    for path in sorted(Path(client).glob("openapi/openapitest/testdata/*_openapi.json")):
        components = closed(json.loads(path.read_text())["components"])
        for name, schema in components["schemas"].items():
            for identity in schema.get("x-kubernetes-group-version-kind", ()):
                if identity["kind"] in KINDS:
                    reference = {"$ref": f"#/components/schemas/{name}", "components": components}
                    yield (identity["kind"], identity["version"]), reference


def operator_schemas() -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield kind and version with the schema, for the resources that operators define."""
    for module, pattern in OPERATORS.items():
        directory = json.loads(go("mod", "download", "-json", module))["Dir"]
        for path in sorted(Path(directory).glob(pattern)):
            for definition in yaml.load_all(path.read_text(), Loader):
                for version in definition["spec"]["versions"]:
                    schema = closed(version["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {}
                    yield (definition["spec"]["names"]["kind"], version["name"]), schema


def go(*arguments: str) -> str:
    """Return the output of the Go command."""
    command = [toolchain(TOOLS), "-C", str(TOOLS), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=300)
    assert ran.returncode == 0, ran.stderr or ran.stdout
    return ran.stdout


def closed(schema: Any) -> Any:
    """Return the schema without room for keys that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    limited = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) and not is_open else {}
    return limited | {key: closed(value) for key, value in schema.items()}
