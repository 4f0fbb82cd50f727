"""The published types and schemas of Kubernetes, the Prometheus Operator and Argo Rollouts, and checks by them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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
