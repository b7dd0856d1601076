"""What buckets lack, read from the ledger's table."""

from __future__ import annotations

import time

import pytest

from telemetry.debts import bucket_debts
from telemetry.ledger import writer
from tests.support.state_world import ledger as record


@pytest.mark.django_db
def test_only_what_ran_in_the_pool_and_ended_before_the_loss_counts():
    now = time.time()

    def row(name: str, ago_s: float, **changes):
        fields = {
            "pool": "llama", "entitlement": "acme", "received_s": now - ago_s - 1, "done_s": now - ago_s,
            "input_tokens": 100, "output_tokens": 50,
        }  # fmt: skip
        return record(name, **(fields | changes))

    writer.write(
        [
            row("one", 10),
            row("two", 20),
            row("of another pool", 10, pool="other"),
            row("refused", 10, outcome="refused"),
            row("after the loss", 1),
            row("long ago", 3000),
            row("unmetered", 10, entitlement="free"),
        ]
    )
    found = bucket_debts("llama", {"acme": (1.0, 1000.0), "idle": (1.0, 10.0)}, now - 5, now)
    assert found == {"acme": pytest.approx(300 - 21, abs=0.5)}
