"""Check that Helm renders the objects of kustomize and finds no fault, and that each value has an effect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployed import DEPLOY, dashboards
from support.go_toolchain import built
from support.kustomized import FOUND, KUBERNETES, with_example, with_tls
from support.published import TOOLS, Kubeconform

CHART = DEPLOY / "helm" / "streameval"
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
RELEASE = "streameval"
KUBERNETES_VERSION = ("--kube-version", "1.33.0")
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "example.org/streameval", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "config": {
        "source": {"kind": "file", "bootstrap_servers": "other:9093", "topic": "clicks", "client": "kafka-python"},
        "policies": {"candidates": ["bold", "careful"]},
        "http": {"host": "::", "token_file": "/run/secrets/token"},
        "state": {"dir": "/var/lib/streameval/other"},
    },
    "secretName": "login",
    "tls": {"secretName": "certificate", "serverName": "streameval.example.org"},
    "kafka": {"tls": {"secretName": "kafka-tls"}},
    "policies": {"configMap": "streameval-policies"},
    "replicas": 2,
    "persistence": {"size": "2Gi", "storageClass": "fast"},
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "3", "memory": "2Gi"}},
    "podAnnotations": {"example.org/owner": "ranking"},
    "serviceAccount": {"name": "recommender"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "dedicated", "operator": "In", "values": ["recommender"]}]}
                ]
            }
        }
    },
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraEnvFrom": [{"secretRef": {"name": "kafka-login"}}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "prometheusOperator": {
        "labels": {"release": "prometheus"},
        "interval": "10s",
        "scrapeTimeout": "9s",
        "grafanaUrl": "https://grafana.example.org",
    },
    "dashboards": {"labels": {"grafana_dashboard": "yes"}},
    "networkPolicy": {
        "ingress": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}],
        "kafkaPorts": {"first": 9192, "last": 9194},
        "egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
    },
}
"""Another value of each key, except for switches and surfaces."""

Objects = dict[tuple[str, str], dict[str, Any]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # Go compiles Helm once for each machine
]


class Helm:
    """Run the program `helm`, which needs no cluster to render and lint a chart."""

    def __init__(self, directory: Path) -> None:
        self._program = str(built(TOOLS, directory, "helm.sh/helm/v3/cmd/helm"))

    def run(self, *command: str, values: dict[str, Any], code: int = 0) -> str:
        """Return the output of a command, or its error if it must end with another `code` than 0."""
        ran = subprocess.run(
            [self._program, *command, "--namespace", "recommender", "--values", "-"],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stderr if code else ran.stdout

    def objects(self, values: dict[str, Any] | None = None, release: str = RELEASE) -> Objects:
        """Return the objects of `helm template`, by kind and name."""
        text = self.run("template", release, str(CHART), *KUBERNETES_VERSION, values=values or {})
        parts = [document for document in yaml.safe_load_all(text) if document]
        return {(document["kind"], document["metadata"]["name"]): document for document in parts}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


SWITCHES = {
    ("prometheusOperator", "enabled"): False,
    ("networkPolicy", "enabled"): False,
    ("dashboards", "enabled"): True,
}
SURFACES: list[dict[str, Any]] = [
    {"name": "home", "config": {"source": {"topic": "home"}}, "replicas": 2},
    {"name": "search", "config": {"name": "Search", "policies": {"candidates": ["bold"]}}, "secretName": "other"},
]
TLS: dict[str, Any] = {"tls": {"secretName": "streameval-tls"}}
COMPONENT = "app.kubernetes.io/component"
MARKS = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}
"""Labels of Helm: they distinguish releases."""


def comparable(objects: Objects) -> Objects:
    """Return the objects without the marks of Helm: its labels, its checksum, and its order of the configuration."""
    plain = {name: unmarked(manifest) for name, manifest in objects.items()}
    for manifest in plain.values():
        if COMPONENT not in manifest["metadata"].get("labels", {}):
            manifest["metadata"].pop("labels", None)  # nothing selects it
        if manifest["kind"] == "StatefulSet":
            manifest["spec"]["template"]["metadata"].pop("annotations", None)
        if manifest["kind"] == "ConfigMap":
            manifest["data"] = {name: yaml.safe_load(text) for name, text in manifest["data"].items()}
    return plain


def unmarked(manifest: Any) -> Any:
    if isinstance(manifest, dict):
        return {name: unmarked(value) for name, value in manifest.items() if name not in MARKS}
    return [unmarked(element) for element in manifest] if isinstance(manifest, list) else manifest


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of all values except non-empty mappings."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def merged(base: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the values with another value at a path."""
    key, *rest = path
    return base | {key: merged(base.get(key, {}), tuple(rest), value) if rest else value}


def nested_value(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


@pytest.mark.parametrize("https", [False, True], ids=["http", "https"])
def test_the_chart_makes_the_objects_of_kustomize(helm: Helm, https: bool) -> None:
    """Compare all objects and every field: image, ports, probes, security, volumes, labels that select."""
    expected = FOUND | {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in with_tls() if https}
    assert comparable(helm.objects(TLS if https else {})) == comparable(expected)


def test_helm_lint_finds_nothing(helm: Helm) -> None:
    for values in ({}, TLS, EVERYTHING, {"surfaces": SURFACES}):
        helm.run("lint", "--strict", str(CHART), values=values)


def test_kubeconform_accepts_every_object(helm: Helm, tmp_path: Path) -> None:
    objects = [manifest for values in ({}, TLS, EVERYTHING) for manifest in helm.objects(values).values()]
    assert Kubeconform(tmp_path).complaints(*objects) == ""


def test_every_value_has_an_effect(helm: Helm) -> None:
    others = (
        {path: nested_value(EVERYTHING, path) for path in leaves(EVERYTHING)} | SWITCHES | {("surfaces",): SURFACES}
    )
    lacking = [path for path in leaves(DEFAULTS) if not any(path == other[: len(path)] for other in others)]
    assert lacking == [], "EVERYTHING has another value for each"
    values = TLS | {"dashboards": {"enabled": True}}
    base = helm.objects(values)
    changed = others | {("dashboards", "enabled"): False}
    assert [path for path, value in changed.items() if helm.objects(merged(values, path, value)) == base] == []


def by_name(part: Any) -> Any:
    """Return a manifest with lists of named parts, such as variables and volumes, in the order of the names."""
    if isinstance(part, dict):
        return {key: by_name(value) for key, value in part.items()}
    if isinstance(part, list):
        return sorted(map(by_name, part), key=lambda each: each.get("name", "") if isinstance(each, dict) else "")
    return part


def test_values_for_the_needs_of_a_cluster_do_what_the_patches_of_the_example_do(helm: Helm) -> None:
    names = ("podAnnotations", "imagePullSecrets", "serviceAccount", "affinity", "kafka", "policies")
    names += ("extraEnv", "extraEnvFrom", "extraVolumes", "extraVolumeMounts")
    rendered = helm.objects({name: EVERYTHING[name] for name in names})["StatefulSet", RELEASE]["spec"]["template"]
    expected = with_example()["spec"]["template"]
    assert by_name(rendered["spec"]) == by_name(expected["spec"])
    assert rendered["metadata"]["annotations"].items() >= expected["metadata"]["annotations"].items()


@pytest.mark.parametrize(
    ("source", "protocol", "has_certificate"),
    [
        ({}, "SSL", True),
        ({"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "streameval"}, "SASL_SSL", False),
        ({"security_protocol": "SSL"}, None, True),
    ],
)
def test_tls_to_kafka_fits_the_login(
    helm: Helm, source: dict[str, str], protocol: str | None, has_certificate: bool
) -> None:
    values = {"kafka": {"tls": {"secretName": "kafka-tls"}}, "config": {"source": source}}
    (container,) = helm.objects(values)["StatefulSet", RELEASE]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"].partition("__")[2]: each.get("value") for each in container["env"]}
    assert variables.get("SECURITY_PROTOCOL") == protocol
    assert ("SSL_CERTFILE" in variables, "SSL_KEYFILE" in variables) == (has_certificate, has_certificate)
    assert variables["SSL_CAFILE"] == "/run/secrets/streameval-kafka/ca.crt"


def test_dashboards_are_those_of_the_directory(helm: Helm) -> None:
    config = helm.objects({"dashboards": {"enabled": True}})["ConfigMap", f"{RELEASE}-dashboards"]
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name.removesuffix(".json"): json.loads(text) for name, text in config["data"].items()} == dashboards()


def test_each_surface_is_a_daemon_of_its_own_with_common_rules(helm: Helm) -> None:
    objects = helm.objects({"surfaces": SURFACES, "resources": {"limits": {"memory": "3Gi"}}})
    kinds: dict[str, set[str]] = {}
    for kind, name in objects:
        kinds.setdefault(kind, set()).add(name)
    daemons = {"streameval-home", "streameval-search"}
    assert kinds.pop("PrometheusRule") == {"streameval"}
    assert kinds.pop("Service") == daemons | {f"{name}-pods" for name in daemons}
    assert set(map(frozenset, kinds.values())) == {frozenset(daemons)}
    home, search = (objects["StatefulSet", name]["spec"] for name in sorted(daemons))
    assert (home["replicas"], search["replicas"]) == (2, 1)
    for spec in (home, search):
        (container,) = spec["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == "3Gi"
    settings = [yaml.safe_load(objects["ConfigMap", name]["data"]["streameval.yaml"]) for name in sorted(daemons)]
    assert [each["name"] for each in settings] == ["home", "Search"]
    assert [each["source"]["topic"] for each in settings] == ["home", "interactions"]
    assert [each["policies"]["candidates"] for each in settings] == [["challenger"], ["bold"]]
    require_apart(objects, "streameval-home", objects, "streameval-search")


def test_a_surface_can_switch_off_what_is_on(helm: Helm) -> None:
    objects = helm.objects(
        {"surfaces": [SURFACES[0] | {"networkPolicy": {"enabled": False}, "replicas": 0}, SURFACES[1]]}
    )
    assert [name for kind, name in objects if kind == "NetworkPolicy"] == ["streameval-search"]
    assert objects["StatefulSet", "streameval-home"]["spec"]["replicas"] == 0


def test_the_switches_remove_what_needs_an_operator_or_a_network_plugin(helm: Helm) -> None:
    kinds = {kind for kind, _ in FOUND}
    reduced = helm.objects({"prometheusOperator": {"enabled": False}, "networkPolicy": {"enabled": False}})
    assert kinds - {kind for kind, _ in reduced} == {"ServiceMonitor", "PrometheusRule", "NetworkPolicy"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"imagee": {}}, "imagee"),
        ({"image": {"tagg": "1"}}, "tagg"),
        ({"replicas": "2"}, "replicas"),
        ({"persistence": {"size": "two"}}, "size"),
        ({"config": {"http": {"port": 8080}}}, "port"),
        ({"config": {"state": {"dir": "/data"}}}, "dir"),
        ({"networkPolicy": {"kafkaPorts": {"first": 0}}}, "first"),
        ({"surfaces": [{"config": {}}]}, "name"),
        ({"surfaces": [{"name": "Home"}]}, "name"),
        ({"surfaces": [{"name": "home", "replicass": 2}]}, "replicass"),
        ({"surfaces": [{"name": "home", "replicas": "2"}]}, "replicas"),
        ({"surfaces": [{"name": "home"}, {"name": "home"}]}, "streameval-home would be the name of two objects"),
        ({"surfaces": [{"name": "a"}, {"name": "a-pods"}]}, "streameval-a-pods would be the name of two objects"),
        ({"surfaces": [{"name": "a-pods"}, {"name": "a"}]}, "streameval-a-pods would be the name of two objects"),
        ({"surfaces": [{"name": "dashboards"}]}, "streameval-dashboards would be the name of two objects"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_with_its_name(helm: Helm, values: dict[str, Any], complaint: str) -> None:
    assert complaint in helm.run("template", RELEASE, str(CHART), *KUBERNETES_VERSION, values=values, code=1)


def test_two_releases_in_a_namespace_share_nothing(helm: Helm) -> None:
    one, two = helm.objects(release="music"), helm.objects(release="films")
    assert not set(one) & set(two)
    require_apart(one, "music", two, "films")


def require_apart(one: Objects, first: str, two: Objects, second: str) -> None:
    """Check that everything of one daemon selects its own pods, and nothing of another daemon does."""
    pods = one["StatefulSet", first]["spec"]["template"]["metadata"]["labels"]
    for kind, *path in (
        ("StatefulSet", "spec", "selector", "matchLabels"),
        ("Service", "spec", "selector"),
        ("PodDisruptionBudget", "spec", "selector", "matchLabels"),
        ("NetworkPolicy", "spec", "podSelector", "matchLabels"),
    ):
        assert nested_value(one[kind, first], tuple(path)).items() <= pods.items()
        assert not nested_value(two[kind, second], tuple(path)).items() <= pods.items()
    monitored = one["ServiceMonitor", first]["spec"]["selector"]["matchLabels"].items()
    assert monitored <= one["Service", f"{first}-pods"]["metadata"]["labels"].items()
    assert not monitored <= two["Service", f"{second}-pods"]["metadata"]["labels"].items()


def test_a_new_configuration_restarts_the_pods_and_loads(helm: Helm) -> None:
    old, new = (helm.objects({"config": {"policies": {"candidates": names}}}) for names in (["a"], ["a", "b"]))
    checksums = [
        objects["StatefulSet", RELEASE]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for objects in (old, new)
    ]
    assert checksums[0] != checksums[1]
    settings = yaml.safe_load(new["ConfigMap", RELEASE]["data"]["streameval.yaml"])
    assert settings["policies"]["candidates"] == ["a", "b"]
    assert settings["source"] == yaml.safe_load((KUBERNETES / "streameval.yaml").read_text())["source"]


def test_links_in_alerts_lead_to_the_given_grafana(helm: Helm) -> None:
    rule = json.dumps(
        helm.objects({"prometheusOperator": {"grafanaUrl": "https://g.example"}})["PrometheusRule", RELEASE]
    )
    assert "https://g.example/d/streameval" in rule
    assert "https://g.example/public/runbooks/" in rule
    assert "localhost" not in rule


def test_the_version_of_the_chart_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("streameval")
