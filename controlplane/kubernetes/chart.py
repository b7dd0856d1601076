"""What the Helm chart takes, as JSON Schema: ``python -m controlplane.kubernetes.chart > .../values.schema.json``.

The chart's defaults say of which type a value is, and :class:`controlplane.env.Env` which settings there are; here is
only what neither says. A name that is not in the defaults is refused, so that a misspelt one is not silently ignored.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from controlplane.env import Env

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "quartermaster"

# Settings that the chart makes itself, that belong into a Secret, or that only `make up` reads.
NOT_SETTINGS = {
    "SECRET_KEY", "SECRET_KEY_FALLBACKS", "DATABASE_URL", "REDIS_URL", "METRICS_TOKEN", "WEBHOOK_SECRET",
    "ALLOWED_HOSTS", "TRUSTED_PROXIES", "HOST", "PORT", "HOME", "WEB_PROCESSES", "DEBUG", "ENGINE", "DEMO_LOAD",
    "ENGINE_SLOTS", "SIM_REPLICAS", "SIM_PRESET", "SIM_SLOTS", "REPLICA_COMMAND", "ENGINE_API_KEY",
}  # fmt: skip

# Maps whose keys are the user's own.
FREE = {
    "podAnnotations", "podLabels", "nodeSelector", "affinity", "serviceAccount.annotations", "web.service.annotations",
    "ingress.annotations", "monitoring.serviceMonitor.labels", "monitoring.prometheusRule.labels",
    "monitoring.dashboards.labels", "web.resources", "worker.resources", "standby.resources", "operator.resources",
    "migrations.resources", "test.resources", "bundled.postgresql.resources", "bundled.redis.resources",
}  # fmt: skip

TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}}
OBJECTS: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
NAME: dict[str, Any] = {"type": "string", "minLength": 1}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}

# What a default does not say of its own value.
MORE: dict[str, dict[str, Any]] = {
    "image.repository": NAME,
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "imagePullSecrets": TEXTS,
    "secrets.keys.secretKey": NAME,
    "secrets.keys.databaseUrl": NAME,
    "secrets.keys.redisUrl": NAME,
    "secrets.keys.metricsToken": NAME,
    "allowedHosts": TEXTS,
    "trustedProxies": TEXTS,
    "extraEnv": OBJECTS,
    "extraEnvFrom": OBJECTS,
    "extraVolumes": OBJECTS,
    "extraVolumeMounts": OBJECTS,
    "runAsUser": {"type": "integer", "minimum": 0},
    "tolerations": OBJECTS,
    "web.replicas": COUNT,
    "worker.replicas": COUNT,
    "worker.concurrency": COUNT,
    "standby.replicas": {"type": "integer", "minimum": 0},
    # How long it has to be depends on DRAIN_S: the template says so (`quartermaster.grace`).
    "web.terminationGracePeriodSeconds": {"type": ["integer", "string"], "pattern": "^$", "minimum": 5},
    "web.autoscaling.minReplicas": COUNT,
    "web.autoscaling.maxReplicas": COUNT,
    "web.autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 1, "maximum": 100},
    "web.podDisruptionBudget.maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%?$", "minimum": 1},
    "web.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "web.service.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "migrations.backoffLimit": {"type": "integer", "minimum": 0},
    "files.persistence.accessModes": TEXTS,
    "ingress.hosts": TEXTS,
    "ingress.tls": OBJECTS,
    "httpRoute.parentRefs": OBJECTS,
    "httpRoute.hostnames": TEXTS,
    "networkPolicy.ingressFrom": OBJECTS,
    "networkPolicy.egress": OBJECTS,
    "networkPolicy.egressPorts": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}},
    "scaling.namespaces": TEXTS,
    "bundled.redis.maxmemory": {"type": "string", "pattern": "^[1-9][0-9]*([kmg]b?)?$"},
    "operator.namespaces": TEXTS,
    "operator.secrets.namespaces": TEXTS,
    "operator.secrets.tenants": {"type": "object", "additionalProperties": TEXTS},
}


def settings() -> dict[str, dict[str, Any]]:
    """Settings that ``values.settings`` may name, without their prefix, with the type of each."""
    types = get_type_hints(Env)
    number: dict[str, Any] = {"pattern": r"^([0-9]+(\.[0-9]+)?)?$"}  # of one that is written as a text
    forms: dict[type, dict[str, Any]] = {
        bool: {"type": ["string", "boolean"]},
        int: {"type": ["string", "integer"]} | number,
        float: {"type": ["string", "number"]} | number,
    }
    result = {}
    for one in fields(Env):
        name = (one.metadata.get("name") or one.name).upper()
        if name not in NOT_SETTINGS:
            form = forms.get(types[one.name], {"type": "string"})
            least = {} if one.metadata["low"] is None or "pattern" not in form else {"minimum": one.metadata["low"]}
            result[name] = form | least | {"description": one.metadata["doc"]}
    return dict(sorted(result.items()))


def schema() -> dict[str, Any]:
    """The whole of ``values.schema.json``."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | _of("", values)


def _of(path: str, value: Any) -> dict[str, Any]:
    if path == "settings":
        return {"type": "object", "additionalProperties": False, "properties": settings()}
    if path in MORE:
        return MORE[path]
    if isinstance(value, dict):
        if path in FREE:
            return {"type": "object"}
        inner = {name: _of(f"{path}.{name}" if path else name, one) for name, one in value.items()}
        # Helm adds "global" to every chart's values.
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": inner if path else inner | {"global": {"type": "object"}},
        }
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, str):
        return {"type": "string"}
    raise TypeError(f"values.yaml: {path} needs a line in controlplane.kubernetes.chart.MORE")


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
