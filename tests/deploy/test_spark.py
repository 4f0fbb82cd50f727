"""Check that the files in deploy/spark fit each other, the lock and the configuration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from streameval.config.model import Config
from support.dockerfiles import let_through, stages
from support.paths import ROOT
from support.published import Kubeconform
from support.pyproject import pinned

SPARK = ROOT / "deploy" / "spark"
DOCKERFILE = (SPARK / "Dockerfile").read_text()
APPLICATION, SERVICE = yaml.safe_load_all((SPARK / "sparkapplication.yaml").read_text())


def test_spark_has_the_version_of_the_lock_everywhere() -> None:
    (version,) = pinned("spark.lock")["pyspark"]
    assert APPLICATION["spec"]["sparkVersion"] == version
    assert f"FROM apache/spark:{version}-" in DOCKERFILE


def test_the_image_has_the_python_and_the_user_of_the_other_one() -> None:
    other = (ROOT / "deploy" / "Dockerfile").read_text()
    for pattern in (r"^FROM (python:\S+)", r"^USER (\S+)"):
        assert set(re.findall(pattern, DOCKERFILE, re.M)) == set(re.findall(pattern, other, re.M))
    copied = [instruction.text for stage in stages(DOCKERFILE) for instruction in stage if instruction.name == "COPY"]
    sources = {word for text in copied if "--from" not in text for word in text.split()[:-1]}
    assert {path for path in sources if let_through(path, (ROOT / ".dockerignore").read_text())} == sources


def test_the_configuration_loads_and_its_paths_are_those_that_are_mounted(tmp_path: Path) -> None:
    text = (SPARK / "streameval.yaml").read_text()
    (tmp_path / "token").write_text("secret")
    (tmp_path / "streameval.yaml").write_text(text.replace("/run/secrets/streameval/", f"{tmp_path}/"))
    config = Config.load(tmp_path / "streameval.yaml", {})
    driver = APPLICATION["spec"]["driver"]
    assert config.engine is not None
    assert config.engine.master is None
    assert config.state.dir is not None
    assert config.state.dir.is_relative_to(driver["volumeMounts"][0]["mountPath"])
    assert f"token_file: {driver['secrets'][0]['path']}/token" in text
    assert APPLICATION["spec"]["arguments"][1] == f"{driver['configMaps'][0]['path']}/streameval.yaml"


def test_the_service_reaches_the_port_of_the_driver() -> None:
    (port,) = APPLICATION["spec"]["driver"]["ports"]
    (served,) = SERVICE["spec"]["ports"]
    assert (served["targetPort"], served["port"]) == (port["name"], port["containerPort"])
    assert f"EXPOSE {port['containerPort']}" in DOCKERFILE
    assert SERVICE["spec"]["selector"]["sparkoperator.k8s.io/app-name"] == APPLICATION["metadata"]["name"]
    assert APPLICATION["spec"]["mainApplicationFile"] == "local:///opt/streameval/run.py"


@pytest.mark.slow
def test_kubeconform_accepts_the_application_and_its_service(tmp_path: Path) -> None:
    assert Kubeconform(tmp_path).complaints(APPLICATION, SERVICE) == ""
