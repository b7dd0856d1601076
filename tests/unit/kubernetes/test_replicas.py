"""Replicas that the cluster has: what is watched, and what its objects say."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kubernetes.replicas import (
    KINDS,
    ClusterReplica,
    SourceError,
    backend_name,
    of_pods,
    of_slices,
    source,
    source_object,
)
from controlplane.scaling.drivers.kubernetes import COST, FIRST_TO_GO


def pod(name: str, address: str = "10.0.0.1", *, ready: bool = True, phase: str = "Running", **metadata: Any) -> dict:
    return {
        "metadata": {"name": name} | metadata,
        "status": {
            "phase": phase, "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


def slice_of(*endpoints: dict[str, Any], port: int | None = 8000) -> dict[str, Any]:
    return {"addressType": "IPv4", "ports": [{"name": "http", "port": port}], "endpoints": list(endpoints)}


DEPLOYMENT = {"spec": {"selector": {"matchLabels": {"app": "vllm", "model": "llama"}}}}


@pytest.mark.parametrize(
    ("spec", "there", "labels", "port"),
    [
        ({"from": {"kind": "Service", "name": "vllm"}}, None, "kubernetes.io/service-name=vllm", None),
        ({"from": {"kind": "Deployment", "name": "vllm"}}, DEPLOYMENT, "app=vllm,model=llama", 8000),
        ({"from": {"kind": "StatefulSet", "name": "vllm"}, "port": 80}, DEPLOYMENT, "app=vllm,model=llama", 80),
        (
            {"from": {"kind": "LeaderWorkerSet", "name": "big"}},
            None,
            "leaderworkerset.sigs.k8s.io/name=big,leaderworkerset.sigs.k8s.io/worker-index=0",
            8000,
        ),
        (
            {"from": {"kind": "InferenceService", "name": "llama"}},
            None,
            "serving.kserve.io/inferenceservice=llama",
            8080,
        ),
        (
            {"from": {"kind": "InferencePool", "name": "llama"}},
            {"spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8001}]}},
            "app=vllm",
            8001,
        ),
        (
            {"from": {"kind": "InferencePool", "name": "older"}},
            {"spec": {"selector": {"app": "vllm"}, "targetPortNumber": 8002}},
            "app=vllm",
            8002,
        ),
        ({"selector": {"matchLabels": {"app": "vllm"}}}, None, "app=vllm", 8000),
        (
            {"from": {"kind": "Deployment", "name": "vllm"}},
            {
                "spec": {
                    "selector": {
                        "matchLabels": {"app": "vllm"},
                        "matchExpressions": [
                            {"key": "gpu", "operator": "In", "values": ["a100", "h100"]},
                            {"key": "canary", "operator": "DoesNotExist"},
                        ],
                    }
                }
            },
            "app=vllm,gpu in (a100,h100),!canary",
            8000,
        ),
    ],
)
def test_every_kind_leads_to_what_has_to_be_watched(
    spec: dict[str, Any], there: dict[str, Any] | None, labels: str, port: int | None
) -> None:
    found = source(spec, there)
    assert (found.labels, found.port) == (labels, port)
    assert found.slices is (spec.get("from", {}).get("kind") == "Service")
    assert (source_object(spec) is not None) is (there is not None)


@pytest.mark.parametrize(
    ("spec", "there", "says"),
    [
        ({}, None, "give either 'from' or 'selector'"),
        ({"from": {"kind": "Deployment", "name": "gone"}}, None, "there is no Deployment 'gone' in this namespace"),
        ({"from": {"kind": "DaemonSet", "name": "x"}}, None, "must be one of Service, Deployment"),
        ({"from": {"kind": "Deployment", "name": "all"}}, {"spec": {"selector": {}}}, "selects every pod"),
        *(
            ({"from": {"kind": "InferencePool", "name": "odd"}}, there, says)
            for there, says in (
                ({}, "InferencePool odd has no selector that can be followed"),
                ({"spec": None}, "has no selector that can be followed"),
                ({"spec": {"selector": None}}, "has no selector that can be followed"),
                ({"spec": {"selector": "app=vllm"}}, "has no selector that can be followed"),
                ({"spec": {"selector": {"matchLabels": "app=vllm"}}}, "a selector that cannot be read"),
                ({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}}, "cannot be read"),
                ({"spec": {"selector": {"matchExpressions": ["a"]}}}, "cannot be read"),
                ({"spec": {"selector": {"matchLabels": {}}}}, "selects every pod"),
                ({"spec": {"selector": {"a": "b"}, "targetPorts": [{}]}}, "no target port that can be read"),
                ({"spec": {"selector": {"a": "b"}, "targetPorts": ["http"]}}, "no target port that can be read"),
                ({"spec": {"selector": {"a": "b"}, "targetPorts": [{"number": 70000}]}}, "spec.replicas.port can say"),
            )
        ),
    ],
)
def test_what_cannot_be_followed_says_what_to_change(
    spec: dict[str, Any], there: dict[str, Any] | None, says: str
) -> None:
    with pytest.raises(SourceError, match=says):
        source(spec, there)


def test_a_pod_counts_once_it_has_an_address_and_takes_work_while_it_is_ready() -> None:
    pods = [
        pod("ready"),
        pod("starts", "10.0.0.2", ready=False),
        pod("ends", "10.0.0.3", deletionTimestamp="2026-11-23T12:00:00Z"),
        pod("chosen", "10.0.0.4", annotations={COST: FIRST_TO_GO}),
        pod("six", "fd00::1"),
        pod("nowhere", ""),
        pod("failed", "10.0.0.5", phase="Failed"),
    ]
    assert of_pods(pods, 8000) == [
        ClusterReplica("ready", "http://10.0.0.1:8000", True),
        ClusterReplica("starts", "http://10.0.0.2:8000", False),
        ClusterReplica("ends", "http://10.0.0.3:8000", False),
        ClusterReplica("chosen", "http://10.0.0.4:8000", False),
        ClusterReplica("six", "http://[fd00::1]:8000", True),
    ]


def test_an_endpoint_takes_work_while_it_is_ready_and_does_not_end() -> None:
    slices = [
        slice_of(
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "targetRef": {"name": "vllm-0"}},
            {"addresses": ["10.0.0.2"], "conditions": {}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": False}},
            {"addresses": ["10.0.0.4"], "conditions": {"ready": True, "terminating": True}},
            {"addresses": []},
        )
    ]
    assert of_slices(slices, None) == [
        ClusterReplica("vllm-0", "http://10.0.0.1:8000", True),
        ClusterReplica("at-10.0.0.2", "http://10.0.0.2:8000", True),
        ClusterReplica("at-10.0.0.3", "http://10.0.0.3:8000", False),
        ClusterReplica("at-10.0.0.4", "http://10.0.0.4:8000", False),
    ]


def test_an_endpoint_that_stands_in_two_slices_is_one_replica() -> None:
    there = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "targetRef": {"name": "vllm-0"}}
    away = there | {"conditions": {"ready": False}}
    both = [slice_of(there), slice_of(away)]
    assert (
        of_slices(both, None) == of_slices(both[::-1], None) == [ClusterReplica("vllm-0", "http://10.0.0.1:8000", True)]
    )


def test_endpoints_without_a_port_are_no_replicas() -> None:
    there = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    assert of_slices([slice_of(there, port=None)], None) == []
    assert of_slices([slice_of(there, port=None)], 9000) == [
        ClusterReplica("at-10.0.0.1", "http://10.0.0.1:9000", True)
    ]


def test_a_backend_is_named_after_its_pod_as_far_as_a_name_goes() -> None:
    assert backend_name("vllm-llama-7d9f-x2x") == "vllm-llama-7d9f-x2x"
    assert backend_name("at-10.0.0.1") == "at-10-0-0-1"
    assert len(backend_name("a" * 60 + "-" + "b" * 30)) == 63
    assert backend_name("at-fd00::1") == "at-fd00--1"


@pytest.mark.parametrize(
    ("args", "slots"),
    [
        (["--max-num-seqs=24"], 24),
        (["--model", "m", "--max-num-seqs", "48", "--port", "80"], 48),
        (["vllm serve m --max-num-seqs 64"], 64),  # sh -c
        (["--max-num-seqs=0"], None),
        (["--max-num-seqs=many"], None),
        ([], None),
    ],
)
def test_slots_are_read_from_the_command_of_a_pod(args: list[str], slots: int | None) -> None:
    there = pod("vllm") | {"spec": {"containers": [{"name": "proxy"}, {"name": "vllm", "args": args}]}}
    assert [one.slots for one in of_pods([there], 8000)] == [slots]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["../../other/deployments/vllm", "..", "vllm?x=1", "vllm,app=other", "a b", "Vllm"])
def test_a_name_that_leads_elsewhere_is_not_followed(kind: str, name: str) -> None:
    with pytest.raises(SourceError, match=r"spec\.replicas\.from\.name: an object cannot be called"):
        source_object({"from": {"kind": kind, "name": name}})
