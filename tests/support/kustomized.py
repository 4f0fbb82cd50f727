"""Make the objects that kustomize makes of deploy/kubernetes, also with the component `tls` and the example overlay."""

from __future__ import annotations

import json
from typing import Any

import yaml

from support.deployed import DEPLOY

KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects of the kustomization, by kind and name. ConfigMaps have no hash in their names."""
    objects = [
        manifest
        for name in KUSTOMIZATION["resources"]
        for manifest in yaml.safe_load_all((KUBERNETES / name).read_text())
    ]
    for made in KUSTOMIZATION["configMapGenerator"]:
        data = {name: (KUBERNETES / name).read_text() for name in made["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data})
    for container in (container for manifest in objects for container in containers(manifest)):
        for image in KUSTOMIZATION["images"]:
            if container["image"] == image["name"]:
                container["image"] += f":{image['newTag']}"
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in objects}


def containers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


FOUND = manifests()


def merged(base: Any, patch: Any) -> Any:
    """Merge a strategic patch. Keys are joined, and named items of lists by their names, with new ones first."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merged(base[key], value) if key in base else value for key, value in patch.items()}
    if isinstance(base, list) and isinstance(patch, list):
        old, new = ({part["name"]: part for part in parts} for parts in (base, patch))
        added = [part for name, part in new.items() if name not in old]
        return added + [merged(part, new.get(name, {})) for name, part in old.items()]
    return patch


def with_tls() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the StatefulSet and the ServiceMonitor with the component `tls`."""
    component = yaml.safe_load((KUBERNETES / "tls" / "kustomization.yaml").read_text())
    pods, scrape = (yaml.safe_load(patch["patch"]) for patch in component["patches"])
    return merged(FOUND[pods["kind"], pods["metadata"]["name"]], pods), patched("ServiceMonitor", scrape)


def with_example() -> dict[str, Any]:
    """Return the StatefulSet with every patch of the example of an overlay."""
    (patch,) = yaml.safe_load((KUBERNETES / "overlay.example.yaml").read_text())["patches"]
    return patched(patch["target"]["kind"], yaml.safe_load(patch["patch"]))


def patched(kind: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the object of a kind after the operations of a JSON patch."""
    manifest: dict[str, Any] = json.loads(json.dumps(FOUND[kind, "streameval"]))
    for operation in operations:
        *way, last = operation["path"].strip("/").split("/")
        part: Any = manifest
        for step in way:
            part = part[int(step) if isinstance(part, list) else step]
        if last == "-":
            part.append(operation["value"])
        else:
            assert (last in part) == (operation["op"] == "replace")
            part[last] = operation["value"]
    return manifest
