"""The types and schemas of custom resources that others publish, and checks by them.

Those of Kubernetes, the Prometheus Operator and Argo Rollouts come from npm, those of other operators from their Go
modules.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from support.go_toolchain import ENVIRONMENT, toolchain
from support.paths import TESTS
from support.programs import output, program

TYPES = TESTS / "deploy" / "kubernetes_types"
OWNERS = {"monitoring.coreos.com": "prometheus-operator", "argoproj.io": "argo-rollouts"}
"""Packages with the types of a group, after `@kubernetes-models/`."""


def published_types(folder: Path) -> Path:
    """A directory in a folder with the types, the schemas and a compiler."""
    directory = shutil.copytree(TYPES, folder / "types")
    options = ("--ignore-scripts", "--no-audit", "--no-fund")
    output(program("npm", "npm"), "ci", "--prefix", str(directory), *options, seconds=250)
    return directory


def compile_as_types(directory: Path, parts: list[dict[str, Any]], code: int = 0) -> str:
    """The manifests as constants of their types: a key that does not exist is an error."""
    lines = []
    for number, part in enumerate(parts):
        owner = OWNERS.get(part["apiVersion"].partition("/")[0])
        package = f"@kubernetes-models/{owner}" if owner else "kubernetes-models"
        lines.append(f'import type {{ I{part["kind"]} as T{number} }} from "{package}/{part["apiVersion"]}";')
        lines.append(f"export const part{number}: T{number} = {json.dumps(part)};")
    (directory / "manifests.ts").write_text("\n".join(lines))
    compiler = directory / "node_modules" / "typescript" / "bin" / "tsc"
    return output(program("node", "nodejs"), str(compiler), "--project", str(directory), code=code)


def validate(directory: Path, parts: list[dict[str, Any]], code: int = 0) -> str:
    """The rules of the published schemas: patterns, ranges, required fields."""
    (directory / "manifests.json").write_text(json.dumps(parts))
    return output(
        program("node", "nodejs"), str(directory / "validate.mjs"), str(directory / "manifests.json"), code=code
    )


def unaccepted(resource: dict[str, Any], module: Path, file: str) -> list[str]:
    """The messages with which the published definition of a custom resource rejects one, also for an unknown key.

    Args:
        resource: its kind and version select the definition
        module: the directory of a go.mod that requires the module of the operator
        file: the resource definitions in that module
    """
    group, _, version = resource["apiVersion"].partition("/")
    schema = schemas(module, file)[group, version, resource["kind"]]
    return [error.message for error in Draft202012Validator(schema).iter_errors(resource)]


@cache
def schemas(module: Path, file: str) -> dict[tuple[str, str, str], Any]:
    """The schemas of the resources that an operator defines, by group, version and kind."""
    (required,) = re.findall(r"^require (\S+) ", (module / "go.mod").read_text(), re.M)
    command = [toolchain(module), "-C", str(module), "mod", "download", "-json", required]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr
    found = {}
    for definition in yaml.safe_load_all((Path(json.loads(done.stdout)["Dir"]) / file).read_text()):
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            place = (spec["group"], version["name"], spec["names"]["kind"])
            found[place] = {**schema, "properties": {**schema["properties"], "metadata": {}}}
    return found


def closed(schema: Any) -> Any:
    """The schema without room for keys that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    named = {} if "properties" not in schema else {"additionalProperties": False}
    return named | {key: closed(value) for key, value in schema.items()}
