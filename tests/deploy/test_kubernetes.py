"""The manifests for Kubernetes."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kestrelmq.config import load_config

_FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
_KUSTOMIZATION: dict[str, Any] = yaml.safe_load((_FOLDER / "kustomization.yaml").read_text())
_VERSIONS = ("1.29", "1.34")
_OWN = {"ServiceMonitor"}
"""Kinds that are not Kubernetes' own, and so not in its schemas."""


def manifest(name: str) -> dict[str, Any]:
    """Return what is in one of the files."""
    [document] = yaml.safe_load_all((_FOLDER / f"{name}.yaml").read_text())
    assert isinstance(document, dict)
    return document


def test_the_kustomization_names_every_file() -> None:
    """What it does not name is not installed."""
    [config] = _KUSTOMIZATION["configMapGenerator"]
    named = {*_KUSTOMIZATION["resources"], *config["files"], "kustomization.yaml"}
    assert named == {file.name for file in _FOLDER.iterdir()}


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("file", _KUSTOMIZATION["resources"])
def test_the_schemas_allow_it(file: str, version: str) -> None:
    """`strict` refuses fields that the schema does not have."""
    document = manifest(file.removesuffix(".yaml"))
    if document["kind"] not in _OWN:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelled_field_is_found() -> None:
    """Otherwise the test above could not fail."""
    document = manifest("statefulset")
    document["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, _VERSIONS[-1], strict=True)


def test_the_parts_fit_together(tmp_path: Path) -> None:
    """Ports, labels, volumes and secrets have the same names everywhere."""
    pod = manifest("statefulset")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    service = manifest("service")["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert service["selector"] == labels
    for name in ("statefulset", "poddisruptionbudget"):
        assert manifest(name)["spec"]["selector"]["matchLabels"] == labels
    policy = manifest("networkpolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports)
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {"admin"}
    claims = manifest("statefulset")["spec"]["volumeClaimTemplates"]
    volumes = {one["name"] for one in pod["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in claims}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounts) == volumes
    # The configuration is one that the server takes, and it looks where the volumes are.
    config = load_config(_FOLDER / "kestrelmq.toml")
    assert config.queue_path.is_relative_to(mounts["queues"])
    assert all(
        user.password_file is not None and user.password_file.is_relative_to(mounts["users"])
        for user in config.users.values()
    )
    assert (
        config.memcache_listen_port,
        config.text_listen_port,
        config.thrift_listen_port,
        config.admin_http_port,
    ) == tuple(ports[name] for name in ("memcache", "text", "thrift", "admin"))


def test_the_service_monitor() -> None:
    """The operator's definition names these fields; an unknown one would be dropped silently."""
    monitor = manifest("servicemonitor")
    assert (monitor["apiVersion"], monitor["kind"]) == (
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
    )
    spec = monitor["spec"]
    assert set(spec) == {"jobLabel", "selector", "endpoints"}
    service = manifest("service")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    # The rules and the dashboard ask for the job `kestrelmq`.
    assert service["metadata"]["labels"][spec["jobLabel"]] == "kestrelmq"
    [endpoint] = spec["endpoints"]
    assert set(endpoint) == {"port", "path", "interval", "basicAuth"}
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    secrets = {endpoint["basicAuth"][part]["name"] for part in ("username", "password")}
    volumes = manifest("statefulset")["spec"]["template"]["spec"]["volumes"]
    assert secrets <= {one["secret"]["secretName"] for one in volumes if "secret" in one}
