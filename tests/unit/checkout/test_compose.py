"""The compose file: what it starts keeps its state where it is told to."""

from __future__ import annotations

from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
EXAMPLE = (DEPLOY / "quartermaster.env.example").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((Path(__file__).resolve().parents[3] / "docker-compose.yml").read_text(encoding="utf-8"))


def test_downloaded_models_outlive_the_container_whoever_runs_in_it() -> None:
    vllm = COMPOSE["services"]["vllm"]
    assert vllm["volumes"] == [f"models:{vllm['environment']['HF_HOME']}"]
    assert not vllm["environment"]["HF_HOME"].startswith("/root")  # an image may run as another user


def test_every_named_volume_is_declared_and_used() -> None:
    used = {mount.split(":")[0] for service in COMPOSE["services"].values() for mount in service.get("volumes", ())}
    assert used == set(COMPOSE["volumes"])


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


def test_nothing_starts_without_its_secrets() -> None:
    """Compose refuses to start where a variable with ``:?`` is empty."""
    services, common = COMPOSE["services"], COMPOSE["x-quartermaster"]["environment"]
    needed = "${%s:?set it in deploy/quartermaster.env}"
    for secret in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "QUARTERMASTER_METRICS_TOKEN"):
        assert f"{secret}=\n" in EXAMPLE, "it has to be filled in"
        assert needed % secret in str(common)
    command = services["redis"]["command"]
    assert command[command.index("--requirepass") + 1] == needed % "REDIS_PASSWORD"
    assert common["QUARTERMASTER_REDIS_URL"].startswith(f"redis://:{needed % 'REDIS_PASSWORD'}@redis:")
    for service in ("web", "worker", "standby", "migrate"):
        assert services[service]["environment"] == common
