"""``python -m controlplane.embedded.prepare BASE_URL``: tables, demo objects and ``demo.json``, then it ends.

Reads the supervisor's plan of engines from standard input (JSON). A process of its own, so that the supervisor stays
small and a failure here has one log.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import django

from controlplane import env_loading
from controlplane.embedded.ask import ask
from controlplane.embedded.home import CannotStart, write_private
from controlplane.embedded.plan import Engine, Plan

PEOPLE = ("admin", "operator", "member")
TIERS = ("premium", "standard", "batch")
SUMMARIES = "summaries"  # the second pool and its model


def main(base_url: str, plan: Plan) -> None:
    django.setup()
    from django.core.management import call_command

    from controlplane import schema
    from tenants.demo import ensure_demo, ensure_token

    if names := schema.newer():
        raise CannotStart(schema.refusal(names))
    if not schema.shipped() <= schema.applied():
        call_command("migrate", interactive=False, verbosity=1)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    ours = env_loading.load()
    api_key = "" if plan.commands else ours.engine_api_key  # engines that we start want none
    plan = ask(plan, api_key)
    pool = plan.pool or slug(plan.model)
    file = ours.home / "demo.json"
    stored = read(file)
    passwords = {name: stored.get("passwords", {}).get(name) or secrets.token_urlsafe(12) for name in PEOPLE}
    keys = ensure_demo(
        pool,
        plan.model,
        [(engine.name, engine.url, engine.slots, engine.kv_tokens) for engine in plan.engines],
        passwords=passwords,
        remembered=stored.get("keys"),
        max_model_len=plan.max_model_len,
        engine=plan.kind,
        caches=plan.caches,
        priced=bool(plan.summaries),
        api_key=api_key,
    ).as_dict()
    summaries: dict[str, Any] = {}
    if plan.summaries:
        texts = ensure_demo(
            SUMMARIES,
            SUMMARIES,
            [(engine.name, engine.url, engine.slots, engine.kv_tokens) for engine in plan.summaries],
            upstream_model=plan.model,
            description="Shows the tuning loop: it begins with queues by prompt length and tunes itself.",
            passwords=passwords,
            remembered=stored.get("summaries", {}).get("keys", {}),
            max_model_len=plan.max_model_len,
            caches=plan.caches,
            show_tuning=True,
            priced=True,
        ).as_dict()
        summaries = {
            "summaries": {"model": SUMMARIES, "pool": SUMMARIES, "keys": {tier: texts[tier] for tier in TIERS}}
        }
    write_private(
        file,
        {
            "base_url": base_url,
            "admin": {
                "url": f"{base_url}/admin/",
                "username": "admin",
                "password": passwords["admin"],
                "token": ensure_token("admin", stored.get("admin", {}).get("token", "")),
            },
            "model": plan.model,
            "pool": pool,
            "keys": {tier: keys[tier] for tier in TIERS},
            **summaries,
            "passwords": passwords,
            "token": ensure_token("operator", stored.get("token", "")),  # what `manage.py replay` reads the ledger with
        },
    )


def slug(model: str) -> str:
    """A pool's name from a model's: ``meta-llama/Llama-3.1-8B`` becomes ``llama-3-1-8b``."""
    return re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")[:40] or "pool"


def read(file: Path) -> dict[str, Any]:
    """What an earlier start wrote; nothing when it was lost or cut."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    for name in ("engines", "summaries"):
        given[name] = [Engine(**engine) for engine in given[name]]
    try:
        main(sys.argv[1], Plan(**given))
    except CannotStart as error:
        sys.exit(str(error))
