"""Batches that are asked for at the same moment, on a server that lets transactions run side by side."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from controlplane.batches import services
from controlplane.batches.models import Batch, StoredFile
from controlplane.v1_routes import Problem
from tests.integration.test_catalog_concurrency import at_once
from tests.support import worlds
from tests.unit.controlplane.test_batch_services import bring, make

pytestmark = pytest.mark.django_db(transaction=True)


def test_no_more_are_open_than_an_entitlement_may_have(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("threads cannot share SQLite's test database in memory; `make test-postgresql` runs this")
    backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": tmp_path}}
    settings.STORAGES = settings.STORAGES | {"batches": backend}
    env = replace(settings.ENV, batches_per_entitlement=3)
    monkeypatch.setattr(services, "_env", lambda: env)
    entitlement = worlds.build().entitlements["acme"]
    files = [bring(entitlement.tenant.slug, entitlement=entitlement.slug) for _ in range(8)]
    new_id = services.new_id

    def slow_id(prefix: str) -> str:
        time.sleep(0.05)  # after the open ones were counted: all the others count as well, where nothing stops them
        return new_id(prefix)

    monkeypatch.setattr(services, "new_id", slow_id)
    refused: list[int] = []

    def ask(file: StoredFile) -> None:
        try:
            make(file)
        except Problem as problem:
            refused.append(problem.status)

    at_once([partial(ask, file) for file in files])
    assert (Batch.objects.count(), refused) == (3, [429] * 5)
