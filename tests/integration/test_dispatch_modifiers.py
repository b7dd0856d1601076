"""Modifiers and routing over the real scripts: shares by what was really used, and replicas that know a prefix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.placement.rule import write_points
from scheduling.core.policies.contracts import Served
from scheduling.core.types import ServiceClass
from scheduling.state.notices import GrantNotice
from scheduling.state.resp import RespConnection
from tests.integration.test_dispatch_loop import Gateway, make_gateway, ready, tiered
from tests.support.dispatch_world import catalog_of, dispatching, until
from tests.support.state_world import backend, ledger

SEVEN = write_points(10**6, [("7" * 12, 400)])  # a prompt that begins so


async def end(gateway: Gateway, notice: GrantNotice, output_tokens: int) -> None:
    owner = notice.request_id.partition("-")[0]
    record = ledger(notice.request_id, pool=gateway.pool.id, entitlement=owner, output_tokens=output_tokens)
    await gateway.store.finish(notice.request_id, notice.attempt, Reason.STOP, 140, True, record)


async def test_turns_follow_what_tenants_have_really_used(redis_url: str, resp: RespConnection, pool_id: str):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        gateway.pool = replace(gateway.pool, policy="fifo", modifiers={"fair": {}})
        brief, wordy = tiered("brief", pool_id, 1), tiered("wordy", pool_id, 1)
        async with dispatching(redis_url, catalog_of(gateway.pool, brief, wordy)) as dispatcher:
            await ready(dispatcher, gateway.store)
            await gateway.admit("first", brief)
            for number in range(10):
                await gateway.admit(f"brief-{number}", brief)
                await gateway.admit(f"wordy-{number}", wordy)
            term = dispatcher.term
            assert term is not None
            await until(lambda: len(term.scheduler) == 20)
            told: dict[str, Any] = {}
            served = term.scheduler.served

            def heard(ended: Served) -> None:
                told[ended.request_id] = ended.output_tokens
                served(ended)

            term.scheduler.served = heard  # type: ignore[method-assign]
            await gateway.finish("first")
            for count in range(12):
                await until(lambda count=count: len(gateway.notices) > count)
                for before in gateway.notices[:count]:
                    await until(lambda before=before: before.request_id in told)
                notice = gateway.notices[count]
                await end(gateway, notice, 10_000 if notice.request_id.startswith("wordy") else 1)
            turns = [notice.request_id.partition("-")[0] for notice in gateway.notices[:12]]
            assert turns.count("wordy") == 2  # one before its first long answer was known, one after brief's ten
            assert "served" in gateway.notices[0].why


@pytest.mark.parametrize(("routing", "expected"), [("least_work", ["b2", "b1"]), ("prefix_affinity", ["b2", "b2"])])
async def test_a_prefix_goes_where_it_went_before(
    redis_url: str, resp: RespConnection, pool_id: str, routing: str, expected: list[str]
):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        backends = tuple(backend(name, slots=2, pool=pool_id) for name in ("b1", "b2"))
        gateway.pool = replace(gateway.pool, backends=backends, routing=routing)
        one, other = tiered("one", pool_id, 1, ServiceClass.GUARANTEED, concurrency=1), tiered("other", pool_id, 1)
        async with dispatching(redis_url, catalog_of(gateway.pool, one, other)) as dispatcher:
            await ready(dispatcher, gateway.store)
            assert (await gateway.admit("load", other)).backend == "b1"
            assert (await gateway.admit("warm-0", one, prefixes=SEVEN)).backend == "b2"
            for number in (1, 2):  # they wait: it may run one at a time
                await gateway.admit(f"warm-{number}", one, prefixes=SEVEN)
            await gateway.finish("warm-0")
            await until(lambda: len(gateway.notices) == 1)
            await gateway.finish("load")  # now both replicas are idle, and least work would be b1 by name
            await gateway.finish("warm-1")
            await until(lambda: len(gateway.notices) == 2)
            assert [notice.backend for notice in gateway.notices] == expected
            assert all(f"{routing} of 2" in notice.why for notice in gateway.notices)


async def test_settings_that_do_not_exist_leave_those_in_force(
    redis_url: str, resp: RespConnection, pool_id: str, caplog: pytest.LogCaptureFixture
):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        spec = tiered("acme", pool_id, 1)
        async with dispatching(redis_url, catalog_of(gateway.pool, spec)) as dispatcher:
            await ready(dispatcher, gateway.store)
            assert dispatcher.term is not None
            for wrong in ({"modifiers": {"bnads": {}}}, {"routing": "random"}):
                changed = replace(gateway.pool, policy_version=2, **wrong)
                dispatcher.update(catalog_of(changed, spec, version=2))
                assert dispatcher.term.policy == "priority@1"
            assert "unknown modifier 'bnads', did you mean 'bands'" in caplog.text
            assert "unknown routing policy 'random'; there are: least_work, prefix_affinity" in caplog.text
            right = replace(gateway.pool, policy_version=3, modifiers={"bands": {}}, routing="prefix_affinity")
            dispatcher.update(catalog_of(right, spec, version=3))
            assert dispatcher.term.policy == "priority@3"
            assert dispatcher.term.scheduler.policy.name == "bands+priority"
