"""The Helm chart, rendered by Helm's own engine."""

from __future__ import annotations

from typing import Any

import helm_python
import yaml

from controlplane.kubernetes.chart import CHART

SECRET: dict[str, Any] = {"secrets": {"existingSecret": "quartermaster"}}
EVERYTHING: dict[str, Any] = {
    "bundled": {"enabled": True},
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": ["pull"],
    "settings": {"LOG_LEVEL": "DEBUG", "FILE_BYTES": 104857600, "DRAIN_S": 20.5, "HTTPS": True},
    "trustedProxies": ["10.42.0.0/16"],
    "web": {"autoscaling": {"enabled": True}},
    "files": {"persistence": {"enabled": True, "storageClassName": "nfs"}},
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["llm.example.org"], "tls": [{"secretName": "tls"}]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["llm.example.net"]},
    "networkPolicy": {"enabled": True, "ingressFrom": [{"namespaceSelector": {}}]},
    "scaling": {"namespaces": ["inference", "research"]},
    "operator": {
        "enabled": True,
        "secrets": {"namespaces": ["research"], "tenants": {"llm": ["a", "b"], "inference": []}},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "test": {"existingSecret": "key"},
}


def render(values: dict[str, Any], *, name: str = "qm", namespace: str = "llm") -> list[dict[str, Any]]:
    """Objects that the chart makes of these values.

    Raises:
        helm_python.HelmError: the values are refused.
    """
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=name, namespace=namespace)
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def one(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends so."""
    [found] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(suffix)]
    return found
