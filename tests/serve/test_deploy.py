"""The manifests under deploy/: their schema, and that a server takes their arguments and answers their probes."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.serve.running import free_ports
from tests.serve.worlds import World

DEPLOY = Path(__file__).parents[2] / "deploy"
VERSION = "1.31"  # of Kubernetes
TOKEN = "a-token-of-the-test"


def objects_of(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def pods() -> list[tuple[str, dict[str, Any]]]:
    """The pods that the manifests describe."""
    (deployment, _, _), (service,) = objects_of("kubernetes.yaml"), objects_of("kserve.yaml")
    predictor = service["spec"]["predictor"]
    own = {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget", "timeout"}  # KServe's, beside those of a pod
    return [
        ("kubernetes.yaml", deployment["spec"]["template"]["spec"]),
        ("kserve.yaml", {name: value for name, value in predictor.items() if name not in own}),
    ]


def test_manifests_of_kubernetes_have_its_schema() -> None:
    found = objects_of("kubernetes.yaml")
    assert [one["kind"] for one in found] == ["Deployment", "Service", "PodDisruptionBudget"]
    for one in found:
        kubernetes_validate.validate(one, VERSION, strict=True)
    for name, spec in pods():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        kubernetes_validate.validate(pod, VERSION, strict=True)
        spec["containers"][0]["arguments"] = []
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, VERSION, strict=True)
        assert len(spec["containers"]) == 1, name


def test_names_that_belong_together_are_the_same() -> None:
    deployment, service, budget = objects_of("kubernetes.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    (kserve,) = objects_of("kserve.yaml")
    assert (kserve["apiVersion"], kserve["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert kserve["spec"]["predictor"]["containers"][0]["name"] == "kserve-container"
    for _, spec in pods():
        (container,) = spec["containers"]
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in spec["volumes"]}
        shown = " ".join(map(str, container["args"]))
        assert "--name ads" in shown


@pytest.mark.parametrize("which", [0, 1])
def test_a_server_takes_the_arguments_and_answers_the_probes(world: World, which: int) -> None:
    (container,) = pods()[which][1]["containers"]
    args = list(container["args"])
    port, grpc_port = free_ports(2)
    args[args.index("s3://models/ads")] = str(world.folder)
    args[args.index("--host") + 1] = "127.0.0.1"
    args[args.index("--workers") + 1] = "2"
    for option, number in (("--port", port), ("--grpc-port", grpc_port)):
        if option in args:
            args[args.index(option) + 1] = str(number)
    if "--port" not in args:
        args += ["--port", str(port)]
    (declared,) = [p["containerPort"] for p in container["ports"] if p["name"] in ("http", "http1")]
    environment = {**os.environ, "CTRBOX_TOKEN": TOKEN}
    command = [part.replace(f":{declared}/", f":{port}/") for part in container["readinessProbe"]["exec"]["command"]]
    command[0] = sys.executable
    assert any(f":{port}/" in part for part in command)
    assert subprocess.run(command, env=environment, capture_output=True).returncode != 0  # nobody listens yet
    server = subprocess.Popen(
        [sys.executable, "-m", "ctrbox", *args],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        cwd=world.data.parent,
    )
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if "press Ctrl-C" in line:
                break
        else:
            pytest.fail("the server did not start")
        for probe in ("startupProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                assert answer.status == 200
        assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
        wrong = {**environment, "CTRBOX_TOKEN": "another"}
        assert subprocess.run(command, env=wrong, capture_output=True).returncode != 0
    finally:
        server.terminate()
        assert server.wait(30) == 0
        server.stderr.close()
