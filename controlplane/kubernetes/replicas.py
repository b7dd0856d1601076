"""Where a pool's replicas are in the cluster: ``spec.replicas`` of a TokenPool. Pure: objects in, replicas out.

A Service is followed by its EndpointSlices, everything else by its pods. Replicas are those of the TokenPool's own
namespace: who may write there decides about both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.scaling.drivers.kubernetes import COST, FIRST_TO_GO, LEADERS
from tenants.validators import MOST_SLOTS

SERVICE_LABEL = "kubernetes.io/service-name"
SLICES = ("discovery.k8s.io/v1", "discovery.k8s.io/v1beta1")  # the newest first
DEFAULT_PORT = 8000  # vLLM's
MOST_REPLICAS = 500  # replicas of a pool, listed or found: whoever may write EndpointSlices can name any number
KSERVE_PORT = 8080
SPEC = "replicas"  # the field of a TokenPool's spec
# What the API server takes for a name, so that one never leads out of its place in a path.
OBJECT_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

# By kind: versions under which the object is asked for, and its plural. Others are known by a label of their pods.
OBJECTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Deployment": (("apps/v1",), "deployments"),
    "StatefulSet": (("apps/v1",), "statefulsets"),
    "InferencePool": (("inference.networking.k8s.io/v1", "inference.networking.x-k8s.io/v1alpha2"), "inferencepools"),
}
LABELLED: dict[str, dict[str, str]] = {
    "LeaderWorkerSet": LEADERS,
    "InferenceService": {"serving.kserve.io/inferenceservice": "{name}"},
}
KINDS = ("Service", *OBJECTS, *LABELLED)


class SourceError(Exception):
    """``spec.replicas`` names nothing that can be followed. The text says what to change."""


@dataclass(frozen=True, slots=True)
class Source:
    """What has to be watched: pods or EndpointSlices with these labels."""

    slices: bool
    labels: str
    port: int | None  # None: the first that a slice names


@dataclass(frozen=True, slots=True)
class ClusterReplica:
    """A replica that the cluster has."""

    name: str  # of the pod, where there is one
    url: str
    ready: bool  # new work may go there: it is ready, and does not end
    slots: int | None = None  # as its command says, where a pod's is known: vLLM reports it in a development mode only


def is_name(text: str) -> bool:
    """Whether an object may be called so. Definitions say it as well; those in the cluster may be older."""
    return len(text) <= 253 and re.fullmatch(OBJECT_NAME[1:-1], text) is not None


def source_object(spec: Mapping[str, Any]) -> tuple[tuple[str, ...], str, str] | None:
    """Versions, plural and name of the object that has to be read before :func:`source`; None where none has.

    Raises:
        SourceError: no object can have this name.
    """
    named = spec.get("from")
    if named is None:
        return None
    if not is_name(named["name"]):
        raise SourceError(f"spec.replicas.from.name: an object cannot be called {named['name']!r}")
    resource = OBJECTS.get(named["kind"])
    return None if resource is None else (*resource, named["name"])


def source(spec: Mapping[str, Any], there: Mapping[str, Any] | None) -> Source:
    """What to watch. ``there``: the object that :func:`source_object` named.

    Raises:
        SourceError: nothing can be.
    """
    named, selector, port = spec.get("from"), spec.get("selector"), spec.get("port")
    if (named is None) == (selector is None):
        raise SourceError("spec.replicas: give either 'from' or 'selector'")
    if named is None:
        return Source(False, _labels(selector or {}, "spec.replicas.selector"), port or DEFAULT_PORT)
    kind, name = named["kind"], named["name"]
    if kind == "Service":
        return Source(True, f"{SERVICE_LABEL}={name}", port)
    if kind in LABELLED:
        labels = ",".join(f"{label}={value.format(name=name)}" for label, value in LABELLED[kind].items())
        return Source(False, labels, port or (KSERVE_PORT if kind == "InferenceService" else DEFAULT_PORT))
    if kind not in OBJECTS:
        raise SourceError(f"spec.replicas.from.kind: must be one of {', '.join(KINDS)}, not {kind!r}")
    if there is None:
        raise SourceError(f"there is no {kind} {name!r} in this namespace")
    where = f"{kind} {name}"
    selected = there.get("spec")
    if not isinstance(selected, Mapping) or not isinstance(selected.get("selector"), Mapping):
        raise SourceError(f"{where} has no selector that can be followed")
    usual = _target_port(selected, where) if kind == "InferencePool" and not port else DEFAULT_PORT
    return Source(False, _labels(selected["selector"], where), port or usual)


_EXPRESSIONS = {
    "In": "{key} in ({values})",
    "NotIn": "{key} notin ({values})",
    "Exists": "{key}",
    "DoesNotExist": "!{key}",
}


def _labels(selector: Mapping[str, Any], where: str) -> str:
    """A label selector as a query has it. What other products serve is only as good as their definition."""
    try:
        plain = selector.get("matchLabels") if {"matchLabels", "matchExpressions"} & selector.keys() else selector
        parts = [f"{label}={value}" for label, value in sorted((plain or {}).items())]
        for one in selector.get("matchExpressions") or []:
            values = ",".join(one.get("values") or [])
            parts.append(_EXPRESSIONS[one["operator"]].format(key=one["key"], values=values))
    except (AttributeError, KeyError, TypeError) as error:
        raise SourceError(f"{where} has a selector that cannot be read: {dict(selector)!r}"[:500]) from error
    if not parts:
        raise SourceError(f"{where} selects every pod of the namespace; give it a label")
    return ",".join(parts)


def _target_port(spec: Mapping[str, Any], where: str) -> int:
    try:
        ports = spec.get("targetPorts") or [{"number": spec.get("targetPortNumber") or DEFAULT_PORT}]
        number = int(ports[0]["number"])
    except (KeyError, IndexError, TypeError, ValueError):
        number = 0
    if not 0 < number < 65536:
        raise SourceError(f"{where} has no target port that can be read; spec.replicas.port can say it")
    return number


def of_pods(pods: Iterable[Mapping[str, Any]], port: int | None) -> list[ClusterReplica]:
    """Replicas that pods are, as far as they have an address and have not ended."""
    replicas = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        address = status.get("podIP")
        if not address or status.get("phase") in ("Succeeded", "Failed"):
            continue
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
        # What a scaling driver is about to end is as good as ending.
        first_to_go = (metadata.get("annotations") or {}).get(COST) == FIRST_TO_GO
        leaves = bool(metadata.get("deletionTimestamp")) or first_to_go
        url = _url(address, port or DEFAULT_PORT)
        replicas.append(ClusterReplica(metadata["name"], url, ready and not leaves, _slots(pod.get("spec") or {})))
    return replicas


def _slots(spec: Mapping[str, Any]) -> int | None:
    """``--max-num-seqs`` of a pod's containers."""
    for container in spec.get("containers") or []:
        text = " ".join([*(container.get("command") or []), *(container.get("args") or [])])
        given = re.search(r"--max-num-seqs[= ]+(\d{1,6})(?=\s|$)", text)
        if given and int(given[1]) > 0:
            return min(int(given[1]), MOST_SLOTS)
    return None


def of_slices(slices: Iterable[Mapping[str, Any]], port: int | None) -> list[ClusterReplica]:
    """Replicas that a Service's endpoints are. One that terminates is listed, and not ready."""
    replicas: dict[str, ClusterReplica] = {}
    for one in slices:
        number = _port(one.get("ports") or [], port)
        if number is None or one.get("addressType") == "FQDN":
            continue
        for endpoint in one.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            # Unknown counts as ready, as Kubernetes has it.
            ready = conditions.get("ready") is not False and not conditions.get("terminating")
            if not endpoint.get("addresses"):
                continue
            address = endpoint["addresses"][0]  # the others are the same server
            url = _url(address, number)
            name = (endpoint.get("targetRef") or {}).get("name") or f"at-{address}"
            other = replicas.get(url)  # while slices are rearranged, an endpoint may stand in two
            replicas[url] = ClusterReplica(name, url, ready or (other is not None and other.ready))
    return list(replicas.values())


def _port(ports: list[dict[str, Any]], wanted: int | None) -> int | None:
    numbers = [int(p["port"]) for p in ports if p.get("port")]
    return wanted or (numbers[0] if numbers else None)


def _url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def backend_name(name: str) -> str:
    """A backend's name for a pod's, which may be longer: its end, where pods differ."""
    return "".join(c if c.isalnum() or c == "-" else "-" for c in name.lower())[-63:].strip("-") or "replica"


SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Replicas that the cluster has, instead of or beside those listed under backends.",
    "properties": {
        "from": {
            "type": "object",
            "description": "What they belong to, in the namespace of this resource.",
            "required": ["kind", "name"],
            "properties": {
                "kind": {"type": "string", "enum": list(KINDS)},
                "name": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": OBJECT_NAME},
            },
        },
        "selector": {
            "type": "object",
            "description": "Pods by their labels, where no object names them.",
            "required": ["matchLabels"],
            "properties": {
                "matchLabels": {
                    "type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "maxLength": 63}
                }
            },
        },
        "port": {
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "description": f"Where they answer. Empty: the Service's or InferencePool's own, {KSERVE_PORT} of an "
            f"InferenceService, else {DEFAULT_PORT}.",
        },
        "slots": {
            "type": "integer", "minimum": 1, "maximum": MOST_SLOTS,
            "description": "Sequences one may run at once. Empty: its pod's --max-num-seqs, else what it says itself.",
        },
        "kvTokens": {
            "type": "integer", "format": "int64", "minimum": 1,
            "description": "Tokens its KV cache holds. Empty: what it says itself.",
        },
    },
    "x-kubernetes-validations": [
        {"rule": "has(self.from) != has(self.selector)", "message": "give either 'from' or 'selector'"}
    ],
}  # fmt: skip
