"""Check that kubeconform accepts deploy/kubernetes, that it is restricted, and that its parts fit together."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from streameval.config.model import Config
from support.deployed import DEPLOY, PROMETHEUS
from support.dockerfiles import stages
from support.kustomized import FOUND, KUBERNETES, KUSTOMIZATION, with_example, with_tls
from support.programs import output
from support.published import Kubeconform

STATEFUL = FOUND["StatefulSet", "streameval"]
POD = STATEFUL["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
POD_LABELS = STATEFUL["spec"]["template"]["metadata"]["labels"]
CONFIG = yaml.safe_load((KUBERNETES / "streameval.yaml").read_text())
SECRET = yaml.safe_load((KUBERNETES / "secret.example.yaml").read_text())
TOKEN_FILE = {"STREAMEVAL_HTTP__TOKEN_FILE": __file__}
"""A file that exists here, in place of the one in the pod."""


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Return whether it selects these labels, and nothing of another program."""
    return "app.kubernetes.io/name" in selector and selector.items() <= labels.items()


@pytest.mark.slow
def test_kubeconform_accepts_every_manifest_and_refuses_a_misspelt_key(tmp_path: Path) -> None:
    kubeconform = Kubeconform(tmp_path)
    assert kubeconform.complaints(*FOUND.values(), SECRET, *with_tls(), with_example()) == ""
    monitor = FOUND["ServiceMonitor", "streameval"]
    (endpoint,) = monitor["spec"]["endpoints"]
    misspelt = {**monitor, "spec": {**monitor["spec"], "endpoints": [{**endpoint, "intervall": "5s"}]}}
    assert "intervall" in kubeconform.complaints(misspelt)
    assert "replikas" in kubeconform.complaints({**STATEFUL, "spec": {**STATEFUL["spec"], "replikas": 2}})


@pytest.mark.parametrize("components", [[], ["base/tls"]], ids=["http", "https"])
def test_kustomize_makes_the_same(tmp_path: Path, components: list[str]) -> None:
    """Compare with kubectl if it has a kustomize of this decade. Elsewhere, the reading above stands in for it."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: the tests read the kustomization themselves")
    shutil.copytree(KUBERNETES, tmp_path / "base")
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": ["base"], "components": components}))
    built = list(yaml.safe_load_all(output("kubectl", "kustomize", str(tmp_path))))
    (config,) = [manifest["metadata"]["name"] for manifest in built if manifest["kind"] == "ConfigMap"]
    reported = json.loads(json.dumps(built).replace(json.dumps(config), '"streameval"'))
    expected = FOUND | {
        (manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in with_tls() if components
    }
    assert {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in reported} == expected


def test_kustomize_applies_every_patch_of_the_example(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: the tests read the patches themselves")
    shutil.copytree(KUBERNETES, tmp_path / "base")
    shutil.copytree(DEPLOY / "grafana" / "dashboards", tmp_path / "overlay")
    (tmp_path / "overlay" / "shop.py").write_text("def factory(): ...\n")
    example = yaml.safe_load((KUBERNETES / "overlay.example.yaml").read_text()) | {"resources": ["../base"]}
    (tmp_path / "overlay" / "kustomization.yaml").write_text(json.dumps(example))
    text = output("kubectl", "kustomize", str(tmp_path / "overlay"))
    named = re.sub(r"\b(streameval(?:-policies)?)-[a-z0-9]{10}\b", r"\1", text)  # the hash of the content
    built = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in yaml.safe_load_all(named)}
    assert built["StatefulSet", "streameval"] == with_example()
    boards = built["ConfigMap", "streameval-grafana"]
    assert boards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert {name: json.loads(content)["uid"] for name, content in boards["data"].items()} == {
        "streameval.json": "streameval",
        "streameval-pipeline.json": "streameval-pipeline",
    }


def test_everything_in_the_directory_is_applied_or_an_example() -> None:
    applied = {
        *KUSTOMIZATION["resources"],
        *(name for made in KUSTOMIZATION["configMapGenerator"] for name in made["files"]),
    }
    separate = {"kustomization.yaml", "secret.example.yaml", "overlay.example.yaml"}
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == applied | separate


def test_the_pod_keeps_the_restricted_standard() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"]["allowPrivilegeEscalation"] is False
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    assert POD["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD)
    kinds = {kind for volume in POD["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir"}


def test_it_runs_as_the_user_of_the_image_with_its_version() -> None:
    (user,) = [step.text for step in stages((DEPLOY / "Dockerfile").read_text())[-1] if step.name == "USER"]
    context = POD["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["fsGroup"] == context["runAsGroup"], "its volume must be its own to write"
    assert CONTAINER["image"] == f"streameval:{version('streameval')}"


def test_probes_ask_what_needs_no_login() -> None:
    paths = {kind: CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/livez", "readiness": "/readyz"}
    assert {CONTAINER[f"{kind}Probe"]["httpGet"]["port"] for kind in paths} == {"http"}


def test_with_tls_all_clients_use_it() -> None:
    stateful, monitor = with_tls()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    for kind in ("startup", "liveness", "readiness"):
        assert container[f"{kind}Probe"]["httpGet"] == {**CONTAINER[f"{kind}Probe"]["httpGet"], "scheme": "HTTPS"}
    files = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if "readOnly" in mount}
    (secret,) = [
        volume["secret"]["secretName"]
        for volume in stateful["spec"]["template"]["spec"]["volumes"]
        if {mounted.get(str(Path(file).parent)) for file in files.values()} == {volume["name"]}
    ]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": secret, "key": "ca.crt"}
    config = Config.load(KUBERNETES / "streameval.yaml", dict.fromkeys(files, __file__) | TOKEN_FILE)
    assert config.http.tls_certfile == config.http.tls_keyfile == __file__
    assert {Path(file).name for file in files.values()} == {"tls.crt", "tls.key"}


def test_resources_are_bounded() -> None:
    assert set(CONTAINER["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in CONTAINER["resources"]["limits"]


def test_only_the_state_is_kept_and_on_a_volume_of_each_pod() -> None:
    (claim,) = STATEFUL["spec"]["volumeClaimTemplates"]
    mounted = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert CONFIG["state"]["dir"].startswith(f"{mounted[claim['metadata']['name']]['mountPath']}/")
    assert {name for name, mount in mounted.items() if not mount.get("readOnly")} == {"state", "tmp"}
    assert set(mounted) == {volume["name"] for volume in POD["volumes"]} | {"state"}


def test_the_configuration_loads_and_is_where_the_daemon_looks() -> None:
    config = Config.load(KUBERNETES / "streameval.yaml", TOKEN_FILE)
    assert config.http.token_file
    assert config.http.port == CONTAINER["ports"][0]["containerPort"]
    mounted = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert CONTAINER["args"] == ["run", f"{mounted['config']}/streameval.yaml"]
    assert CONFIG["http"]["token_file"] == f"{mounted['secret']}/token"


def test_names_of_secrets_and_maps_are_those_that_exist() -> None:
    name, keys = SECRET["metadata"]["name"], set(SECRET["stringData"])
    assert name == "streameval"
    (secret,) = [volume["secret"] for volume in POD["volumes"] if "secret" in volume]
    assert secret["secretName"] == name
    wanted = {item["key"] for item in secret["items"]}
    for variable in CONTAINER["env"]:
        assert variable["valueFrom"]["secretKeyRef"]["name"] == name
        wanted.add(variable["valueFrom"]["secretKeyRef"]["key"])
    credentials = FOUND["ServiceMonitor", "streameval"]["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert credentials["name"] == name
    assert wanted | {credentials["key"]} == keys
    assert {("ConfigMap", volume["configMap"]["name"]) for volume in POD["volumes"] if "configMap" in volume} <= set(
        FOUND
    )


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("StatefulSet", "streameval", ("spec", "selector", "matchLabels")),
        ("Service", "streameval", ("spec", "selector")),
        ("Service", "streameval-pods", ("spec", "selector")),
        ("PodDisruptionBudget", "streameval", ("spec", "selector", "matchLabels")),
        ("NetworkPolicy", "streameval", ("spec", "podSelector", "matchLabels")),
    ],
)
def test_selectors_mean_the_pods(kind: str, name: str, path: tuple[str, ...]) -> None:
    selector = FOUND[kind, name]
    for step in path:
        selector = selector[step]
    assert selects(selector, POD_LABELS)


def test_prometheus_finds_every_pod_once_ready_or_not() -> None:
    monitor = FOUND["ServiceMonitor", "streameval"]["spec"]
    services = [manifest for (kind, _), manifest in FOUND.items() if kind == "Service"]
    (service,) = [
        manifest for manifest in services if selects(monitor["selector"]["matchLabels"], manifest["metadata"]["labels"])
    ]
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == STATEFUL["spec"]["serviceName"]
    assert "streameval" in service["metadata"]["labels"][monitor["jobLabel"]], (
        "alerts look for it in the name of the job"
    )
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert monitor["endpoints"][0]["interval"] == scraped["global"]["scrape_interval"]
    assert (
        {"http"}
        == {port["name"] for port in service["spec"]["ports"]}
        == {endpoint["port"] for endpoint in monitor["endpoints"]}
    )


def test_pods_of_two_namespaces_are_two_instances() -> None:
    """Rules join series by job and instance: two pods of one name, each about its own policies, must not be one."""
    (endpoint,) = FOUND["ServiceMonitor", "streameval"]["spec"]["endpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["targetLabel"] == "instance"
    assert relabeling["sourceLabels"] == ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"]


def test_the_overlay_of_the_readme_means_what_is_there() -> None:
    (text,) = re.findall(r"^```yaml\n(# kustomization.yaml\n.*?)^```", (DEPLOY / "README.md").read_text(), re.M | re.S)
    overlay = yaml.safe_load(text)
    assert {image["name"] for image in overlay["images"]} == {image["name"] for image in KUSTOMIZATION["images"]}
    assert [image["newTag"] for image in overlay["images"]] == [version("streameval")]
    made = KUSTOMIZATION["configMapGenerator"]
    assert overlay["configMapGenerator"] == [{**generator, "behavior": "replace"} for generator in made]
    assert [replica["name"] for replica in overlay["replicas"]] == [STATEFUL["metadata"]["name"]]
    assert all(set(label) == {"pairs"} for label in overlay["labels"]), "selectors of what runs cannot be changed"


def test_a_drain_is_never_blocked_for_ever() -> None:
    """Nor while no pod is ready, as when Kafka is away: by default such pods may not be evicted if there are two."""
    budget = FOUND["PodDisruptionBudget", "streameval"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_network_is_closed_but_for_prometheus_names_and_kafka() -> None:
    policy = FOUND["NetworkPolicy", "streameval"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] and rule["ports"] for rule in policy["ingress"])
    opened = [port for rule in policy["egress"] for port in rule["ports"]]
    (kafka,) = [int(server.partition(":")[2]) for server in [CONFIG["source"]["bootstrap_servers"]]]
    assert any(
        port["port"] <= kafka <= port.get("endPort", port["port"]) for port in opened if port["protocol"] == "TCP"
    )
    assert {"UDP", "TCP"} == {port["protocol"] for port in opened if port["port"] == 53}
    anywhere = [port for rule in policy["egress"] if "to" not in rule for port in rule["ports"]]
    assert all(port["port"] <= kafka <= port["endPort"] for port in anywhere), "only brokers may be anywhere"


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the program that `make manifests` runs."""
    monkeypatch.syspath_prepend(KUBERNETES)
    return import_module("prometheusrule")


def test_the_links_of_alerts_are_to_the_grafana_of_the_variable(export: Any) -> None:
    rules = (PROMETHEUS / "rules" / "alerts.yml").read_text()
    moved = export.replace_links(rules, "https://grafana.example.com/of/team/")
    links = re.findall(r"_url: '([^']*)'", moved)
    assert len(links) == len(re.findall("_url: ", rules)) > 40
    assert all(link.startswith("https://grafana.example.com/of/team/") for link in links)
    assert "localhost:3000" not in moved
    assert export.replace_links(moved, "http://localhost:3000") == rules


def test_the_rules_are_those_of_deploy_prometheus(export: Any) -> None:
    written = export.manifest()
    assert FOUND["PrometheusRule", "streameval"] == written, "run `make manifests`"
    files = [yaml.safe_load(path.read_text())["groups"] for path in (PROMETHEUS / "rules").glob("*.yml")]
    every = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["evaluation_interval"]
    own = {group["name"]: {"interval": every} | group for groups in files for group in groups}
    assert {group["name"]: group for group in written["spec"]["groups"]} == own
