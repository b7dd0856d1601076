"""The compose file: what it starts keeps its state where it is told to."""

from __future__ import annotations

from pathlib import Path

import yaml

COMPOSE = yaml.safe_load((Path(__file__).resolve().parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))


def test_downloaded_models_outlive_the_container_whoever_runs_in_it() -> None:
    vllm = COMPOSE["services"]["vllm"]
    assert vllm["volumes"] == [f"models:{vllm['environment']['HF_HOME']}"]
    assert not vllm["environment"]["HF_HOME"].startswith("/root")  # an image may run as another user


def test_every_named_volume_is_declared_and_used() -> None:
    used = {mount.split(":")[0] for service in COMPOSE["services"].values() for mount in service.get("volumes", ())}
    assert used == set(COMPOSE["volumes"])
