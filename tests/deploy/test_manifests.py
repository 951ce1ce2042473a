"""What is shipped to run the gateway elsewhere: linted, valid by the schemas of its readers, and true of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import gateway
from gateway.config.load import load
from gateway.config.schema import Settings
from tests.docs.pages import ROOT

pytestmark = pytest.mark.check

KUBERNETES = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
MANIFESTS = [KUBERNETES / name for name in KUSTOMIZATION["resources"]]
SHIPPED = [*sorted(KUBERNETES.glob("*.yaml")), ROOT / "compose.yaml", ROOT / "config" / "gateway.yaml"]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
VERSIONS = ("1.29", "1.33", "1.36")
YAMLLINT = (
    "{extends: default, rules: {document-start: disable, line-length: {max: 120}, braces: {max-spaces-inside: 1}}}"
)


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """Kind → its manifest."""
    documents = [yaml.safe_load(file.read_text()) for file in MANIFESTS]
    return {document["kind"]: document for document in documents}


def test_kustomization_names_all_files_and_the_release() -> None:
    assert KUSTOMIZATION["resources"] == sorted(KUSTOMIZATION["resources"])
    [generated] = KUSTOMIZATION["configMapGenerator"]
    others = {"kustomization.yaml", *generated["files"]}
    assert {file.name for file in KUBERNETES.glob("*.yaml")} == {*KUSTOMIZATION["resources"], *others}
    assert KUSTOMIZATION["images"] == [{"name": "mlc-gateway", "newTag": gateway.__version__}]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_makes_the_manifests_and_the_overlay_of_the_readme(tmp_path: Path) -> None:
    def made(folder: Path) -> dict[str, Any]:
        done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
        documents = list(yaml.safe_load_all(done.stdout))
        for document in documents:
            kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        return {document["kind"]: document for document in documents}

    def image(found: dict[str, Any]) -> str:
        return str(found["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"])

    def volume(found: dict[str, Any]) -> str:
        volumes = found["Deployment"]["spec"]["template"]["spec"]["volumes"]
        return str(next(one["configMap"]["name"] for one in volumes if one["name"] == "config"))

    base = made(KUBERNETES)
    assert image(base) == f"mlc-gateway:{gateway.__version__}"
    assert volume(base) == base["ConfigMap"]["metadata"]["name"] != "mlc-gateway"
    shutil.copytree(KUBERNETES, tmp_path / "deploy" / "kubernetes")
    mine = tmp_path / "mine"
    mine.mkdir()
    [overlay] = re.findall(r"^```yaml kubernetes\n(.*?)^```", (KUBERNETES / "README.md").read_text(), re.M | re.S)
    (mine / "kustomization.yaml").write_text(overlay)
    (mine / "gateway.yaml").write_text("upstream: {url: 'http://mine:9200'}\n")
    changed = made(mine)
    assert image(changed) == f"registry.example.org/mlc-gateway:{gateway.__version__}"
    assert changed["ConfigMap"]["data"]["gateway.yaml"] == "upstream: {url: 'http://mine:9200'}\n"
    assert volume(changed) == changed["ConfigMap"]["metadata"]["name"] != volume(base)
    assert {document["metadata"]["namespace"] for document in changed.values()} == {"search"}


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_the_dockerfile_passes_hadolint() -> None:
    done = subprocess.run([_tool("hadolint"), str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_yamllint_is_content(file: Path) -> None:
    command = [sys.executable, "-m", "yamllint", "--strict", "-d", YAMLLINT, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_kubernetes_takes_it(file: Path, version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(file.read_text()), version, strict=True)


def test_the_check_against_the_schema_can_fail(parts: dict[str, Any]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(parts["Deployment"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_all_parts_are_there_and_select_the_same_pods(parts: dict[str, Any]) -> None:
    assert set(parts) == {
        "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Service",
    }  # fmt: skip
    labels = parts["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert parts["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert parts["Service"]["spec"]["selector"] == labels
    assert parts["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    target = parts["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": parts["Deployment"]["metadata"]["name"]}


def test_the_settings_are_the_gateways_and_fit_the_pod(parts: dict[str, Any], tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.listen.data_port, "admin": settings.listen.admin_port}
    assert pod["terminationGracePeriodSeconds"] > settings.listen.drain_seconds + settings.listen.shutdown_seconds
    readiness = container["readinessProbe"]
    assert settings.listen.drain_seconds > readiness["periodSeconds"] * readiness["failureThreshold"]
    assert readiness["timeoutSeconds"] > settings.upstream.timeouts.lookup
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"] == ["serve", "-c", f"{mounts['config']}/gateway.yaml"]
    assert settings.listen.admin_token.reveal() == "t0ken-of-the-tests"
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}


def _settings(folder: Path) -> Settings:
    """The settings that become the ConfigMap, with their secrets in `folder`."""
    (folder / "admin-token").write_text("t0ken-of-the-tests\n")
    file = folder / "gateway.yaml"
    text = (KUBERNETES / "gateway.yaml").read_text()
    file.write_text(text.replace("/etc/mlc-gateway/secrets", str(folder)))
    return load(file, {})


def test_the_pod_may_do_nothing_it_need_not(parts: dict[str, Any]) -> None:
    """Kubernetes' pod security standard "restricted", and a root file system nobody writes to."""
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    user = re.search(r"^USER (\d+):\d+$", DOCKERFILE.read_text(), re.MULTILINE)
    assert user is not None
    assert int(user[1]) == pod["securityContext"]["runAsUser"] != 0


def test_what_the_dockerfile_copies_is_in_its_context() -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE):
        copied |= {name.removeprefix("./") for name in line.split()}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)
