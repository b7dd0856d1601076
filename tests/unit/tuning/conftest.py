"""A pool that can be tuned."""

from __future__ import annotations

import pytest

from tenants import services
from tenants.models import Backend, Pool
from tests.support.tuning_world import ANN


@pytest.fixture
def pool() -> Pool:
    made = services.save(
        actor=ANN, instance=Pool(slug="llama", model="llama", policy="ewsjf", policy_params={"partition": "1-9000"})
    )
    services.save(
        actor=ANN,
        instance=Backend(slug="gpu-1", pool=made, url="http://10.0.0.1:8000", slots=4, kv_tokens=100_000),
    )
    return made
