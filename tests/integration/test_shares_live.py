"""Fair shares over real scripts: grants on arrival count, and a leader that follows goes on from the last one's."""

from __future__ import annotations

import json
from dataclasses import replace

from scheduling.state.notices import GrantNotice
from scheduling.state.resp import RespConnection
from tests.integration.test_dispatch_loop import Gateway, make_gateway, ready, tiered
from tests.integration.test_dispatch_modifiers import end
from tests.support.dispatch_world import catalog_of, dispatching, until, until_await
from tests.support.state_world import backend


def turns(gateway: Gateway) -> list[str]:
    return [notice.request_id.partition("-")[0] for notice in gateway.notices]


async def test_a_leader_that_follows_goes_on_with_the_shares_of_the_last_one(
    redis_url: str, resp: RespConnection, pool_id: str
):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        gateway.pool = replace(gateway.pool, policy="fifo", modifiers={"fair": {}})
        brief, wordy = tiered("brief", pool_id, 1), tiered("wordy", pool_id, 1)
        catalog = catalog_of(gateway.pool, brief, wordy)
        async with dispatching(redis_url, catalog) as dispatcher:
            await ready(dispatcher, gateway.store)
            await gateway.admit("first", wordy)
            for number in range(10):
                await gateway.admit(f"brief-{number}", brief)
                await gateway.admit(f"wordy-{number}", wordy)
            waiting = [f"{name}-{number}" for name in ("brief", "wordy") for number in range(10)]
            term = await until(lambda: dispatcher.term)
            await until(lambda: len(term.scheduler) == 20)
            await gateway.finish("first")
            # until wordy has had one long answer
            while "wordy" not in turns(gateway)[:-1]:
                count = len(gateway.notices)
                await until(lambda count=count: len(gateway.notices) > count)
                await gateway.renew(*waiting)
                notice = gateway.notices[count]
                long = notice.request_id.startswith("wordy")
                await end(gateway, notice, 10_000 if long else 1)

            async def kept() -> bool:
                told = await resp.call(b"HGET", gateway.store._key("shares"), b"1")
                shares = json.loads(told)[""] if told else {}
                return shares.get("wordy", 0.0) > shares.get("brief", 0.0) + 500

            await until_await(kept)
            before = len(gateway.notices)
            await gateway.renew(*waiting)
            await end(gateway, gateway.notices[-1], 1)

        async def decides() -> bool:
            return await resp.call(b"HGET", gateway.store._key("meta"), b"decides") == b"2"

        async with dispatching(redis_url, catalog, holder="leader-b"):
            await until_await(decides)  # until then scripts hand out by arrival
            for count in range(before, before + 6):
                await gateway.renew(*waiting)
                await until(lambda count=count: len(gateway.notices) > count)
                await end(gateway, gateway.notices[count], 1)
        assert turns(gateway)[before : before + 6] == ["brief"] * 6


async def test_what_is_granted_on_arrival_counts_while_it_runs_and_when_it_has_ended(
    redis_url: str, resp: RespConnection, pool_id: str
):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        gateway.pool = replace(
            gateway.pool, policy="fifo", modifiers={"fair": {}}, backends=(backend("b1", slots=4, pool=pool_id),)
        )
        direct = tiered("direct", pool_id, 1)
        async with dispatching(redis_url, catalog_of(gateway.pool, direct)) as dispatcher:
            await ready(dispatcher, gateway.store)
            term = await until(lambda: dispatcher.term)

            def counted() -> float:
                return term.scheduler.kept_shares()[""].get("direct", 0.0)

            for number in range(2):
                assert (await gateway.admit(f"direct-{number}", direct)).backend == "b1"
            await end(gateway, GrantNotice("direct-0", 1, "b1", "direct", ""), 40)
            await until(lambda: counted() > 0)
            (shares,) = term.scheduler._shares
            name = direct.id
            running = counted()
            await until(lambda: shares[name] > running)  # type: ignore[index]  # the other one still runs
            await end(gateway, GrantNotice("direct-1", 1, "b1", "direct", ""), 40)
            await until(lambda: counted() > running)
