"""Whatever a study may choose, a live pool takes: every point of the space is a setting that its form accepts."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.tuning.replicas import setting_of
from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_ordering, make_routing, modifiers
from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replica import Replica
from scheduling.tuning.space import SPACES
from scheduling.tuning.structure import BANDS, ORDERS, SPACE, Choice, Structure
from scheduling.tuning.traffic import Serving, Traffic
from tenants import services
from tenants.audit import Actor
from tenants.models import PolicyVersion, Pool

ANN = Actor("ann", "cli")
lengths = st.lists(st.integers(1, 9000), min_size=1, max_size=40)


def structure(seen: list[int], places: bool = False) -> Structure:
    preset = load_preset("llama-3-8b-a100")
    rows = tuple(Recorded(float(n), given, 10, "acme", "premium") for n, given in enumerate(seen))
    traffic = Traffic(rows, SHIPPED, (Replica(preset.step_time, 16, preset.kv_tokens, preset.token_budget),))
    return Structure(traffic, Serving("unified", routing="prefix_affinity"), places=places)


@pytest.mark.django_db
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), seen=lengths, places=st.booleans())
def test_every_point_is_a_setting_that_a_live_pool_accepts_and_a_version_keeps(
    seed: int, seen: list[int], places: bool
):
    space = structure(seen, places)
    setting = json.loads(json.dumps(setting_of(space.serving(space.draw(Random(seed))))))
    pool = Pool(slug="llama", model="llama")
    for name, value in setting.items():
        assert name in PolicyVersion.content
        setattr(pool, name, value)
    pool.full_clean()
    make_policy(pool.policy, pool.policy_params, pool.modifiers)
    make_routing(pool.routing, pool.routing_params)
    assert pool.room == setting["room"]


@given(seed=st.integers(0, 2**32), places=st.booleans())
def test_a_point_has_exactly_the_dimensions_that_exist_there(seed: int, places: bool):
    space = structure([100], places)
    point = space.draw(Random(seed))
    assert set(point) == {d.name for d in space.dimensions if d.exists(point)}
    assert all(name.split(".")[0] == point["order"] for name in point if "." in name)
    assert space.complete(point) == point


def test_anchors_and_the_default_are_points_and_the_default_is_what_a_new_pool_has():
    space = structure([100, 3000])
    for point in (*space.anchors(), space.default()):
        assert space.complete(point) == point
    setting = setting_of(space.serving(space.default()))
    new = Pool()
    assert (setting["policy"], setting["modifiers"], setting["room"]) == (new.policy, new.modifiers, new.room)
    params = setting["policy_params"]
    assert make_ordering("unified", params) == make_ordering(new.policy, new.policy_params)


def test_what_the_space_declares_is_there_with_its_default_within_its_bounds():
    assert set(SPACES) <= set(ORDERS)
    for order in ORDERS:
        make_ordering(order)
    assert {BANDS, "fair", "relegate"} <= set(modifiers()) | {BANDS}
    for dimension in SPACE:
        if isinstance(dimension.what, Choice):
            assert dimension.what.default in dimension.what.options
        if dimension.where is not None:
            parent = next(d.what for d in SPACE if d.name == dimension.where[0])
            assert isinstance(parent, Choice)
            assert set(dimension.where[1]) <= set(parent.options)


@pytest.mark.django_db
def test_a_setting_is_applied_through_the_services_that_people_use():
    pool = services.save(actor=ANN, instance=Pool(slug="llama", model="llama"))
    setting = setting_of(structure([50, 2000]).serving(structure([50, 2000]).draw(Random(3))))
    rest = {name: value for name, value in setting.items() if name not in ("policy", "policy_params")}
    changed = services.set_policy(
        actor=ANN, pool=pool, policy=setting["policy"], params=setting["policy_params"], **rest
    )
    kept = PolicyVersion.objects.get(pool=pool, number=changed.policy_version)
    assert {name: getattr(kept, name) for name in PolicyVersion.content} == setting
