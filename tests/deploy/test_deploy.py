"""The files of deploy/: valid for the tools that read them, confined, and calling commands that exist.

The linters are the extra `deploy`; without one, its test is skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from fuzzcompile.front.cli.main import cli

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = ("compose.yaml", "compose.tls.yaml")
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DASK = "kubernetes.dask.org/"


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text())


def objects() -> Iterator[dict[str, Any]]:
    for path in KUBERNETES:
        yield from yaml.safe_load_all(path.read_text())


def pods(thing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The specifications of pods in an object of Kubernetes or of Dask's operator."""
    spec = thing.get("spec", {})
    if thing["apiVersion"].startswith(DASK):
        yield from (spec[part]["spec"] for part in ("worker", "scheduler") if part in spec)
    elif "template" in spec:
        yield spec["template"]["spec"]


ALL_PODS = [pytest.param(pod, id=f"{thing['metadata']['name']}-{pod['containers'][0]['name']}")
            for thing in objects() for pod in pods(thing)]  # fmt: skip


def commands() -> Iterator[list[str]]:
    """Every command line of the manifests, and those that the README tells to type in a container."""
    for name in COMPOSE:
        for service in load(name)["services"].values():
            yield service.get("command", [])
    for thing in objects():
        for pod in pods(thing):
            yield from (container.get("args", []) for container in pod["containers"])
    for line in re.findall(r"--rm campaign (fuzzcompile .+)", (DEPLOY / "README.md").read_text()):
        yield line.split()


OURS = [words[1:] for words in commands() if words[:1] == ["fuzzcompile"]]
DASKS = [words[1:] for words in commands() if words[:1] == ["dask"]]


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_our_commands_and_options_exist(words: list[str]) -> None:
    plain = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in words]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        _, found, plain = command.resolve_command(context, plain)
        assert found is not None
        command = found
    assert command.make_context("fuzzcompile", plain).params


@pytest.mark.parametrize("words", DASKS, ids=" ".join)
def test_dasks_commands_and_options_exist(words: list[str]) -> None:
    pytest.importorskip("distributed")
    from distributed.cli import dask_scheduler, dask_worker

    command = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[words[0]]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known
    command.make_context("dask", words[1:])


def test_tls_is_configured_under_dasks_own_names() -> None:
    pytest.importorskip("distributed")
    from dask.config import collect_env, get
    from distributed.security import Security

    for service, role in {"scheduler": "scheduler", "worker": "worker", "campaign": "client"}.items():
        told = load("compose.tls.yaml")["services"][service]["environment"]
        config = collect_env(told)
        assert get("distributed.comm.require-encryption", config=config) is True
        assert get("distributed.comm.tls.ca-file", config=config) == "/tls/ca.pem"
        assert get(f"distributed.comm.tls.{role}.key", config=config) == "/tls/key.pem"
    assert hasattr(Security(), "tls_client_key")


def test_what_tls_replaces_is_the_same_command_otherwise() -> None:
    plain, tls = (load(name)["services"] for name in COMPOSE)
    for service, changed in tls.items():
        words = [word.replace("tls://", "tcp://") for word in changed["command"]]
        assert [word for word in words if word not in ("--protocol", "tls")] == plain[service]["command"]


def test_containers_are_confined_and_only_the_campaign_knows_the_password() -> None:
    services = load("compose.yaml")["services"]
    for name in ("scheduler", "worker", "campaign"):
        service = services[name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert [name for name in services if "PASSWORD" in str(services[name].get("environment"))] == [
        "postgres", "campaign",
    ]  # fmt: skip
    assert "database" not in services["worker"]["networks"] + services["scheduler"]["networks"]
    networks = load("compose.yaml")["networks"]
    assert networks["cluster"]["internal"] and networks["database"]["internal"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8787:8787"]
    assert "exec" in services["worker"]["tmpfs"][0], "kernels are loaded from there"


@pytest.mark.parametrize("pod", ALL_PODS)
def test_pods_keep_to_the_restricted_profile(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
        knows = any(entry["name"] in ("PGPASSWORD", "POSTGRES_PASSWORD") for entry in container.get("env", []))
        assert knows == (container["name"] in ("postgres", "campaign"))
        assert not any("password" in entry["name"].lower() and "value" in entry for entry in container.get("env", []))


def test_every_pod_is_under_a_policy_and_workers_reach_no_database() -> None:
    policies = {thing["metadata"]["name"]: thing["spec"] for thing in objects() if thing["kind"] == "NetworkPolicy"}
    assert policies["closed"]["podSelector"] == {} and policies["closed"]["policyTypes"] == ["Ingress", "Egress"]
    [reached] = policies["cluster"]["egress"]
    assert reached["to"] == [{"podSelector": policies["cluster"]["podSelector"]}]
    [writers] = policies["postgres"]["ingress"]
    assert writers["from"] == [{"podSelector": policies["campaign"]["podSelector"]}]
    campaign = next(thing for thing in objects() if thing["kind"] == "Job")
    labels = campaign["spec"]["template"]["metadata"]["labels"]
    assert labels == policies["campaign"]["podSelector"]["matchLabels"]


def test_the_names_in_the_manifests_fit_together() -> None:
    known = {(thing["kind"], thing["metadata"]["name"]) for thing in objects()}
    assert {("Service", "postgres"), ("DaskCluster", "fuzzcompile")} <= known
    address = [word for words in OURS for word in words if word.startswith("tcp://") and ":8786" in word]
    # The operator names a cluster's service after it.
    assert set(address) == {"tcp://scheduler:8786", "tcp://fuzzcompile-scheduler:8786"}
    assert all(thing["metadata"].get("namespace", "fuzzcompile") == "fuzzcompile" for thing in objects())
    cluster = next(thing for thing in objects() if thing["kind"] == "DaskCluster")
    assert cluster["spec"]["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == "fuzzcompile"


def test_the_image_has_what_it_runs_with_and_no_root() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert ".[cluster,postgres]" in text and "g++" in text and "\nUSER 10001\n" in text
    pinned = re.search(r"^torch==(\S+)$", (DEPLOY.parent / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and f"ARG TORCH={pinned[1]}\n" in text
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in copied.split():
            assert (DEPLOY.parent / name).exists() and f"!{name}\n" in (
                DEPLOY / "Containerfile.dockerignore"
            ).read_text()


# -- linters --------------------------------------------------------------------------------------


def test_hadolint_has_no_complaint() -> None:
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint is not installed (extra deploy)")
    said = subprocess.run([hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, "")


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_files_keep_to_the_specification(name: str) -> None:
    pytest.importorskip("check_jsonschema")
    checked = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / name)]
    said = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_manifests_keep_to_the_schemas_of_kubernetes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for thing in yaml.safe_load_all(path.read_text()):
        if not thing["apiVersion"].startswith(DASK):
            validate.validate(thing, validate.latest_version(), strict=True)
            continue
        for pod in pods(thing):  # the operator's own schema takes any pod
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
            validate.validate(whole, validate.latest_version(), strict=True)
