"""The Helm chart: what it takes, what it refuses, and that what it makes is what the product needs."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from django.core.management import CommandError, call_command

from controlplane.env import Env
from controlplane.kubernetes import chart, leases, resources
from controlplane.kubernetes.key_secrets import tenants_by_namespace
from scheduling.core.types import ServiceClass
from tests.support.chart import EVERYTHING, SECRET, one, render

ONLY_OURS = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}  # custom resources of others: no schema here
COMPOSE = yaml.safe_load((chart.CHART.parents[2] / "docker-compose.yml").read_text())


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_helm_finds_no_fault_in_it() -> None:
    report = helm_python.lint(str(chart.CHART), SECRET, strict=True)
    assert [message for message in report["messages"] if message["severity"] > 1] == []


def test_its_schema_is_that_of_its_defaults_and_of_our_settings() -> None:
    assert json.loads((chart.CHART / "values.schema.json").read_text()) == chart.schema()


@pytest.mark.parametrize("version", ["1.27", "1.30", "1.34", "1.37"])
@pytest.mark.parametrize("values", [SECRET, EVERYTHING], ids=["defaults", "everything"])
def test_what_it_makes_fits_the_schemas_of_kubernetes(version: str, values: dict[str, Any]) -> None:
    objects = render(values)
    for made in objects:
        if made["kind"] not in ONLY_OURS:
            kubernetes_validate.validate(made, version, strict=True)
    assert len(objects) >= 8


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "secrets.existingSecret is empty"),
        (SECRET | {"webb": {}}, "webb"),
        (SECRET | {"web": {"replicas": 0}}, "/web/replicas"),
        (SECRET | {"web": {"terminationGracePeriodSeconds": "5m"}}, "/web/terminationGracePeriodSeconds"),
        (SECRET | {"web": {"terminationGracePeriodSeconds": 304}}, "Make it at least 305 (settings.DRAIN_S and 5 s"),
        (
            SECRET | {"web": {"terminationGracePeriodSeconds": 64}, "settings": {"DRAIN_S": "59.5"}},
            "Make it at least 65 (settings.DRAIN_S and 5 s",
        ),
        (SECRET | {"settings": {"DRAIN_S": "5m"}}, "/settings/DRAIN_S"),
        (SECRET | {"settings": {"DRAIN_S": -1}}, "/settings/DRAIN_S"),
        (
            SECRET | {"extraEnv": [{"name": "QUARTERMASTER_DRAIN_S", "value": "600"}]},
            "set settings.DRAIN_S instead of QUARTERMASTER_DRAIN_S",
        ),
        (SECRET | {"settings": {"LOG_LEVL": "DEBUG"}}, "LOG_LEVL"),
        (SECRET | {"settings": {"SECRET_KEY": "in the open"}}, "SECRET_KEY"),
        (SECRET | {"image": {"digest": "latest"}}, "digest"),
        (SECRET | {"ingress": {"enabled": True}}, "ingress.hosts is empty"),
        ({"secrets": {"existingSecret": "q", "keys": {"metricsToken": ""}}}, "/secrets/keys/metricsToken"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(helm_python.HelmError, match=re.escape(says)):
        render(values)


def test_a_setting_reaches_every_process_as_it_was_written() -> None:
    objects = render(EVERYTHING)
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "Job")]
    assert len(pods) == 5
    for pod in pods:
        env = env_of(pod["containers"][0])
        assert env["QUARTERMASTER_FILE_BYTES"] == "104857600"
        assert env["QUARTERMASTER_DRAIN_S"] == "20.5"
        assert env["QUARTERMASTER_HTTPS"] == "true"
        assert env["QUARTERMASTER_TRUSTED_PROXIES"] == "10.42.0.0/16"
        assert {"llm.example.org", "llm.example.net", "qm-quartermaster.llm.svc"} <= set(
            env["QUARTERMASTER_ALLOWED_HOSTS"].split(",")
        )


def test_no_secret_is_in_what_it_makes_when_one_is_there() -> None:
    objects = render(SECRET)
    assert [o for o in objects if o["kind"] == "Secret"] == []
    env = env_of(one(objects, "Deployment", "-web")["spec"]["template"]["spec"]["containers"][0])
    for name in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "METRICS_TOKEN"):
        assert env[f"QUARTERMASTER_{name}"]["secretKeyRef"]["name"] == "quartermaster"


def test_every_pod_is_closed_down_as_far_as_it_can_be() -> None:
    for made in render(EVERYTHING):
        pod = made["spec"] if made["kind"] == "Pod" else made.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        assert pod["enableServiceLinks"] is False  # a Service "quartermaster" would set QUARTERMASTER_PORT
        assert pod["securityContext"]["runAsNonRoot"] is True
        label = made["metadata"].get("labels", {}).get("app.kubernetes.io/component")
        assert pod["automountServiceAccountToken"] is (
            label in ("worker", "standby", "operator")
        )  # who scales asks the cluster
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            if container["image"].startswith("quartermaster"):
                assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_every_container_of_ours_has_the_environment_that_is_given_to_all() -> None:
    given = [{"configMapRef": {"name": "proxy"}}]
    seen = set()
    for made in render(EVERYTHING | {"extraEnvFrom": given}):
        for container in made.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            if container["image"].startswith("quartermaster"):
                assert container["envFrom"] == given, container["name"]
                seen.add(container["name"])
    assert seen == {"web", "worker", "standby", "operator", "migrate"}


def test_every_pod_of_ours_has_the_files_that_are_given_to_all() -> None:
    """An authority of one's own: of Redis, PostgreSQL, engines and the identity provider."""
    volume = {"name": "ca", "configMap": {"name": "company-ca"}}
    mount = {"name": "ca", "mountPath": "/etc/company-ca", "readOnly": True}
    seen = set()
    for made in render(EVERYTHING | {"extraVolumes": [volume], "extraVolumeMounts": [mount]}):
        pod = made.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", []):
            if container["image"].startswith("quartermaster"):
                assert volume in pod["volumes"], container["name"]
                assert mount in container["volumeMounts"], container["name"]
                seen.add(container["name"])
    assert seen == {"web", "worker", "standby", "operator", "migrate"}


@pytest.mark.parametrize("user", [10001, 0, 2000])
def test_the_cluster_may_choose_the_user_of_our_pods(user: int) -> None:
    """OpenShift's `restricted-v2` admits no pod that names a user outside its namespace's range."""
    for made in render({**SECRET, "operator": {"enabled": True}, "runAsUser": user}):
        pod = made["spec"] if made["kind"] == "Pod" else made.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"].get("runAsUser", 0) == user
            assert pod["securityContext"].get("fsGroup", user) == user
            assert (user == 0) is ("runAsUser" not in pod["securityContext"])


def test_a_web_pod_that_stops_is_out_of_the_service_before_it_ends() -> None:
    web = one(render(SECRET), "Deployment", "-web")
    pod = web["spec"]["template"]["spec"]
    assert env_of(pod["containers"][0])["QUARTERMASTER_DRAIN_S"] == "300"
    assert pod["terminationGracePeriodSeconds"] == 310
    probe = pod["containers"][0]["readinessProbe"]
    assert probe["httpGet"]["path"] == "/readyz?of=process"
    assert probe["periodSeconds"] * probe["failureThreshold"] < 5  # LEAVE_S: so long it serves, and says that it goes
    assert web["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize(
    ("values", "grace_s"),
    [
        ({"settings": {"LOG_LEVEL": "INFO"}}, 310),  # what is named is kept beside the default
        ({"settings": {"DRAIN_S": 600}}, 610),
        ({"settings": {"DRAIN_S": "59.5"}}, 70),
        ({"settings": {"DRAIN_S": 0}}, 10),
        ({"settings": {"DRAIN_S": ""}}, 40),  # the product's own default: 30 s
        ({"settings": {"DRAIN_S": None}}, 40),  # as of a release whose values did not have it (--reuse-values)
        ({"web": {"terminationGracePeriodSeconds": 305}}, 305),
        ({"web": {"terminationGracePeriodSeconds": 45}, "settings": {"DRAIN_S": 40}}, 45),
    ],
)
def test_a_web_pod_is_not_killed_before_its_drain_is_over(values: dict[str, Any], grace_s: int) -> None:
    web = one(render(SECRET | values), "Deployment", "-web")["spec"]["template"]["spec"]
    assert web["terminationGracePeriodSeconds"] == grace_s
    drain_s = env_of(web["containers"][0]).get("QUARTERMASTER_DRAIN_S")
    assert grace_s >= float(drain_s or Env.drain_s) + 5


def test_processes_are_started_as_compose_starts_them() -> None:
    objects = render(SECRET)
    for name in ("worker", "standby"):
        [container] = one(objects, "Deployment", f"-{name}")["spec"]["template"]["spec"]["containers"]
        assert container["args"] == COMPOSE["services"][name]["command"]
    [migrate] = one(objects, "Job")["spec"]["template"]["spec"]["containers"]
    assert migrate["args"] == COMPOSE["services"]["migrate"]["command"]


@pytest.mark.parametrize("key", ["password", "pw"])
def test_bundled_servers_take_their_password_from_the_key_that_is_named(key: str) -> None:
    named: dict[str, Any] = {"keys": {} if key == "password" else {"bundledPassword": key}}
    for existing in ("", "mine"):
        objects = render({"bundled": {"enabled": True}, "secrets": {**named, "existingSecret": existing}})
        for server in ("-redis", "-postgresql"):
            [container] = one(objects, "StatefulSet", server)["spec"]["template"]["spec"]["containers"]
            asked = [e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e]
            assert {(ref["name"], ref["key"]) for ref in asked} == {(existing or "qm-quartermaster-bundled", key)}
        made = [o for o in objects if o["kind"] == "Secret" and o["metadata"]["name"].endswith("-bundled")]
        assert [key in secret["stringData"] for secret in made] == ([] if existing else [True])


def test_a_secret_without_the_password_of_bundled_servers_is_refused_by_name() -> None:
    values = {"bundled": {"enabled": True}, "secrets": {"existingSecret": "mine"}}
    found = '(dict "data" (dict "secret-key" "x"))'
    with pytest.raises(helm_python.HelmError, match="The Secret mine has no key password"):
        with_found('lookup "v1" "Secret" $.Release.Namespace .', found, values, name="qm")


def with_found(lookup: str, found: str, values: dict[str, Any], *, name: str) -> None:
    """The renderer of the tests has no cluster to look into: what is found there is put into the template."""
    template = (chart.CHART / "templates" / "bundled.yaml").read_text()
    assert template.count(lookup) == 1
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(chart.CHART, Path(folder) / "quartermaster")
        (copied / "templates" / "bundled.yaml").write_text(template.replace(lookup, found))
        with helm_python.Chart.load(str(copied)) as loaded:
            loaded.render(values, name=name, namespace="llm")


def test_a_volume_of_bundled_servers_is_not_left_behind_by_a_shorter_name() -> None:
    """A chart before named the servers by the release's whole name."""
    claim, long = 'lookup "v1" "PersistentVolumeClaim" $.Release.Namespace $claim', "r" * 42
    values: dict[str, Any] = {"bundled": {"enabled": True}, "fullnameOverride": long}
    with pytest.raises(helm_python.HelmError, match=f"bundled.postgresql.existingClaim=data-{long}-postgresql-0"):
        with_found(claim, '(dict "kind" "PersistentVolumeClaim")', values, name="qm")
    with_found(claim, '(dict "kind" "PersistentVolumeClaim")', values | {"fullnameOverride": "r" * 41}, name="qm")
    claims = {server: {"existingClaim": f"data-{long}-{server}-0"} for server in ("postgresql", "redis")}
    with_found(claim, "dict", values, name="qm")
    values["bundled"] |= claims
    with_found(claim, '(dict "kind" "PersistentVolumeClaim")', values, name="qm")
    for server, there in claims.items():
        made = one(render(values), "StatefulSet", server)["spec"]
        volumes = made["template"]["spec"]["volumes"]
        assert volumes == [{"name": "data", "persistentVolumeClaim": {"claimName": there["existingClaim"]}}]
        assert "volumeClaimTemplates" not in made


def test_another_secret_key_reaches_every_process_where_one_is_named() -> None:
    """One that lacks it would log people out, while the key is changed."""
    values = {"secrets": {"existingSecret": "mine", "keys": {"secretKeyFallbacks": "secret-key-2"}}}
    for name, pod in pods_of(render({**EVERYTHING, **values})).items():
        env = env_of(pod["containers"][0])
        if "QUARTERMASTER_SECRET_KEY" in env:
            told = env["QUARTERMASTER_SECRET_KEY_FALLBACKS"]["secretKeyRef"]
            assert told == {"name": "mine", "key": "secret-key-2"}, name
    assert "SECRET_KEY_FALLBACKS" not in str(render(EVERYTHING))


def test_bundled_redis_keeps_what_it_is_told() -> None:
    redis = one(render(EVERYTHING), "StatefulSet", "-redis")["spec"]["template"]["spec"]["containers"][0]
    mine = [word if "PASSWORD" not in word else "" for word in redis["args"]]
    theirs = COMPOSE["services"]["redis"]["command"]
    durable = [word for word in mine if word not in ("redis-server", "--requirepass", "")]
    kept = [word for word in theirs if word not in ("redis-server", "/run/secrets/redis.conf")]
    assert durable == kept


def test_the_scaling_driver_may_do_what_it_does_and_nothing_else() -> None:
    objects = render(EVERYTHING)
    roles = [o for o in objects if o["kind"] == "Role" and o["metadata"]["name"].endswith("-scaling")]
    roles = [role for role in roles if role["metadata"]["namespace"] != "kube-node-lease"]
    assert [role["metadata"]["namespace"] for role in roles] == ["inference", "research"]
    allowed = {(r, v) for rule in roles[0]["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert allowed == {
        ("deployments", "get"), ("deployments/scale", "get"), ("deployments/scale", "patch"), ("pods", "list"),
        ("pods", "patch"), ("leaderworkersets/scale", "get"), ("leaderworkersets/scale", "patch"),
    }  # fmt: skip


def test_the_operator_may_touch_secrets_only_where_it_was_told() -> None:
    objects = render(EVERYTHING)
    roles = [o for o in objects if o["kind"] == "Role" and o["metadata"]["name"].endswith("-keys")]
    assert [role["metadata"]["namespace"] for role in roles] == ["research", "inference", "llm"]
    for role in roles:
        assert [(r["resources"], r["verbs"]) for r in role["rules"]] == [(["secrets"], ["get", "create", "patch"])]
    everywhere = [r for o in objects if o["kind"] == "ClusterRole" for r in o["rules"]]
    assert not any("secrets" in rule["resources"] for rule in everywhere)


def rights(role: dict[str, Any]) -> set[tuple[str, str]]:
    return {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}


def test_where_namespaces_are_listed_the_operators_rights_end_with_them() -> None:
    values = {**EVERYTHING, "operator": {"enabled": True, "namespaces": ["inference", "research"]}}
    objects = render(values)
    roles = [o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == "llm-qm-quartermaster-operator"]
    roles = [role for role in roles if role["metadata"]["namespace"] != "kube-node-lease"]
    assert [role["metadata"]["namespace"] for role in roles] == ["inference", "research"]
    everywhere = one(render(EVERYTHING), "ClusterRole")
    narrow = one(objects, "ClusterRole")
    assert {resource for resource, _ in rights(narrow)} == {
        "namespaces", "customresourcedefinitions", "nodes", "nodes/status",
    }  # fmt: skip
    for role in roles:
        assert rights(role) | rights(narrow) == rights(everywhere), "no more, no less"
    bound = [
        o["metadata"]
        for o in objects
        if o["kind"] == "RoleBinding" and o["roleRef"]["name"] == roles[0]["metadata"]["name"]
    ]
    assert [one["namespace"] for one in bound if one["namespace"] != "kube-node-lease"] == ["inference", "research"]
    pattern = render({**EVERYTHING, "operator": {"enabled": True, "namespaces": ["team-*", "research"]}})
    assert rights(one(pattern, "ClusterRole")) == rights(everywhere)


def test_the_operator_may_renew_leases_of_nodes_and_no_others() -> None:
    objects = render(EVERYTHING)
    assert not any(resource == "leases" for resource, _ in rights(one(objects, "ClusterRole")))
    [role] = [o for o in objects if o["kind"] == "Role" and ("leases", "patch") in rights(o)]
    assert role["metadata"]["namespace"] == "kube-node-lease"
    values = {**EVERYTHING, "operator": {"enabled": True, "leases": False}}
    assert not any(("leases", "patch") in rights(o) for o in render(values) if o["kind"] == "Role")


def test_the_operator_is_told_whose_keys_a_namespace_may_have() -> None:
    deployment = one(render(EVERYTHING), "Deployment", "-operator")["spec"]["template"]["spec"]["containers"][0]
    told = [word.removeprefix("--keys-for=") for word in deployment["args"] if word.startswith("--keys-for=")]
    assert tenants_by_namespace(told) == {"llm": {"a", "b"}, "inference": set()}, "an empty list is nobody, not anybody"


def test_alert_rules_and_dashboard_are_those_of_deploy() -> None:
    objects = render(EVERYTHING)
    rules = one(objects, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((chart.CHART.parents[1] / "prometheus" / "alerts.yaml").read_text())
    [text] = one(objects, "ConfigMap")["data"].values()
    assert json.loads(text) == json.loads((chart.CHART.parents[1] / "grafana" / "quartermaster.json").read_text())


def test_priority_classes_are_those_that_leases_ask_for() -> None:
    made = {o["metadata"]["name"]: o["value"] for o in render(EVERYTHING) if o["kind"] == "PriorityClass"}
    assert made == {f"quartermaster-{name}": value for name, value in leases.PRIORITIES.items()}
    assert list(leases.PRIORITIES) == [one.value for one in ServiceClass]


def test_custom_resources_are_those_that_the_manifest_has() -> None:
    there = {path.name: path.read_text() for path in (chart.CHART / "crds").iterdir()}
    assert there == dict(resources.documents())


def test_the_operator_may_write_every_resource_it_serves() -> None:
    rules = one(render(EVERYTHING), "ClusterRole")["rules"]
    ours = {r for rule in rules if rule["apiGroups"] == [resources.GROUP] for r in rule["resources"]}
    assert ours == {name for r in resources.RESOURCES for name in (r.plural, f"{r.plural}/status")}


def pods_of(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Specs by the name of the object that makes them."""
    found = {
        o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] in {"Pod", "Deployment", "StatefulSet", "Job"}
    }
    return {name: spec.get("template", {}).get("spec", spec) for name, spec in found.items()}


def test_every_pod_has_the_images_secrets_and_the_nodes_that_it_was_given() -> None:
    given = {
        "imagePullSecrets": ["pull"],
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "priorityClassName": "platform",
    }
    pods = pods_of(render(EVERYTHING | given))
    assert len(pods) == 8
    for name, pod in pods.items():
        assert pod["imagePullSecrets"] == [{"name": "pull"}], name
        assert {key: pod[key] for key in list(given)[1:]} == {key: given[key] for key in list(given)[1:]}, name


def test_every_container_says_what_it_needs() -> None:
    """A quota of the namespace refuses a pod that does not: the Job of the migration would wait for ever."""
    for name, pod in pods_of(render(EVERYTHING)).items():
        for container in pod["containers"]:
            assert set(container["resources"]) == {"requests", "limits"}, name


def test_the_notes_warn_of_bundled_servers_that_get_no_user() -> None:
    """Their images' own user is root, which `runAsNonRoot` keeps from starting unless a cluster chooses another."""
    warning = "Set runAsUser to 10001"
    assert warning in notes({"bundled": {"enabled": True}, "runAsUser": 0})
    assert warning not in notes({"bundled": {"enabled": True}})
    assert warning not in notes(SECRET | {"runAsUser": 0})


@pytest.mark.parametrize(
    ("values", "opened"),
    [
        ({}, "port-forward svc/qm-quartermaster"),
        ({"ingress": {"enabled": True, "hosts": ["llm.example.org"]}}, "https://llm.example.org/"),
        ({"ingress": {"enabled": True, "hosts": ["*.example.org", "llm.example.org"]}}, "https://llm.example.org/"),
        ({"ingress": {"enabled": True, "hosts": ["*.example.org"]}}, "https:// and a name of *.example.org"),
        (
            {"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}], "hostnames": ["llm.example.net"]}},
            "https://llm.example.net/",
        ),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}, "port-forward svc/qm-quartermaster"),
        ({"settings": {"PUBLIC_URL": "https://llm.example.com"}}, "https://llm.example.com"),
    ],
)
def test_the_notes_say_where_the_console_is(values: dict[str, Any], opened: str) -> None:
    assert opened in notes(SECRET | values).split("2. Open the console:")[1].split("3. ")[0]


def notes(values: dict[str, Any]) -> str:
    with helm_python.Chart.load(str(chart.CHART)) as loaded:
        return loaded.render(values, name="qm", namespace="llm")["quartermaster/templates/NOTES.txt"]


@pytest.mark.parametrize(
    "proxy",
    [
        "10.42.0.0/16", "10.0.0.1", "10.0.0.1/32", "0.0.0.0/0", "192.168.128.0/17", "::1", "fd00::/8", "10.42.1.0/16",
        "10.42.0.0/33", "300.0.0.1", "10.42", "", "ingress", "192.168.64.0/17", "fd00::/129",
    ],
)  # fmt: skip
def test_the_chart_takes_the_proxies_that_a_process_takes_and_no_others(proxy: str) -> None:
    """`helm install` would be done, and its pods would end at once."""
    try:
        ip_network(proxy)
    except ValueError:
        with pytest.raises(helm_python.HelmError, match=re.escape("trustedProxies")):
            render(SECRET | {"trustedProxies": [proxy]})
    else:
        render(SECRET | {"trustedProxies": [proxy]})


def test_the_cluster_may_choose_the_user_of_bundled_servers_as_well() -> None:
    for name, pod in pods_of(render({"bundled": {"enabled": True}, "runAsUser": 0})).items():
        assert "runAsUser" not in pod["securityContext"], name
        assert "fsGroup" not in pod["securityContext"], name


def test_a_worker_and_its_standby_are_kept_apart() -> None:
    pods = pods_of(render(SECRET))
    for name in ("qm-quartermaster-worker", "qm-quartermaster-standby"):
        nodes, zones = pods[name]["topologySpreadConstraints"]
        assert (nodes["topologyKey"], zones["topologyKey"]) == ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        assert nodes["labelSelector"]["matchExpressions"][0]["values"] == ["worker", "standby"]


def test_a_wildcard_of_a_route_is_a_host_that_web_processes_know() -> None:
    objects = render({**SECRET, "ingress": {"enabled": True, "hosts": ["*.example.org"]}})
    assert one(objects, "Ingress")["spec"]["rules"][0]["host"] == "*.example.org"
    env = env_of(one(objects, "Deployment", "-web")["spec"]["template"]["spec"]["containers"][0])
    assert ".example.org" in env["QUARTERMASTER_ALLOWED_HOSTS"].split(",")


def test_no_router_ends_a_stream_that_is_silent_while_its_request_waits() -> None:
    """OpenShift's does after 30 s, nginx after 60, unless the Ingress says otherwise."""
    told = one(render(EVERYTHING), "Ingress")["metadata"]["annotations"]
    assert told["haproxy.router.openshift.io/timeout"] == "3600s"
    assert told["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "3600"


def test_the_guides_values_for_openshift_are_taken_and_name_no_user() -> None:
    guide = (chart.CHART.parents[2] / "docs" / "guide" / "kubernetes.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```yaml\n(runAsUser: 0\n.*?)```", guide, re.S)
    for name, pod in pods_of(render(SECRET | yaml.safe_load(text))).items():
        assert not {"runAsUser", "fsGroup"} & set(pod["securityContext"]), name


def test_the_pods_of_bundled_servers_can_be_made_whatever_the_releases_name() -> None:
    """A StatefulSet's name and a hash of ten letters are a label of its pods."""
    for made in render({"bundled": {"enabled": True}}, name="r" * 53):
        if made["kind"] == "StatefulSet":
            assert len(made["metadata"]["name"]) <= 63 - 1 - 10


def test_two_releases_of_one_name_in_two_namespaces_make_nothing_twice() -> None:
    def made(namespace: str, classes: bool) -> set[tuple[str, str, str]]:
        operator = EVERYTHING["operator"] | {"namespaces": ["x"], "priorityClasses": classes}
        objects = render(EVERYTHING | {"operator": operator}, namespace=namespace)
        everywhere = {"ClusterRole", "ClusterRoleBinding", "PriorityClass"}
        return {
            (
                o["kind"],
                "" if o["kind"] in everywhere else o["metadata"].get("namespace", namespace),
                o["metadata"]["name"],
            )
            for o in objects
        }

    assert made("a", True) & made("b", False) == set()


def test_values_of_a_chart_before_keep_the_priority_classes() -> None:
    """``helm upgrade --reuse-values`` leaves out what is new, as null does; without them lease pods are refused."""
    objects = render({**SECRET, "operator": {"enabled": True, "priorityClasses": None}})
    assert len([o for o in objects if o["kind"] == "PriorityClass"]) == 5


def test_what_may_reach_the_web_pods_includes_the_pod_of_helm_test() -> None:
    """Where only an ingress controller may, `helm test` would else fail by its own policy."""
    only = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    objects = render(SECRET | {"networkPolicy": {"enabled": True, "ingressFrom": only}})
    policy, pod = one(objects, "NetworkPolicy")["spec"], one(objects, "Pod", "-test")
    first, second = policy["ingress"]
    assert first["from"] == only
    assert second["ports"] == first["ports"]
    [peer] = second["from"]
    assert peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    web = one(objects, "Deployment", "-web")["spec"]["template"]
    [port] = web["spec"]["containers"][0]["ports"]
    allowed = {entry["port"] for rule in policy["egress"] for entry in rule["ports"]}
    assert port["containerPort"] in allowed, "it asks web pods as every pod of the release may"
    assert not peer["podSelector"]["matchLabels"].items() <= web["metadata"]["labels"].items()


def test_definitions_are_written_into_a_folder_that_is_made_for_them(tmp_path: Path) -> None:
    call_command("crds", str(tmp_path / "new" / "crds"))
    assert {path.name for path in (tmp_path / "new" / "crds").iterdir()} == {name for name, _ in resources.documents()}
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("crds", str(tmp_path / "file"))
