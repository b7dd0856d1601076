"""``/ws/live``: who gets in, what each sees, and how a screen heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.layers import channel_layers, get_channel_layer
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.test import Client

from scheduling.core.types import PoolSpec
from telemetry.feed import consumers, hub, rights, snapshots
from telemetry.feed.routing import websocket_urlpatterns
from telemetry.feed.sources import Sources
from tenants import services
from tenants.audit import SYSTEM
from tests.support import worlds
from tests.support.live_screens import Feed, Screen
from tests.support.telemetry_world import NOW, POOL, MemoryStore, record, refused

pytestmark = pytest.mark.django_db(transaction=True)

APPLICATION = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))


@pytest.fixture(autouse=True)
def layer() -> Iterator[None]:
    with mock.patch.object(
        settings, "CHANNEL_LAYERS", {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    ):
        channel_layers.backends = {}
        yield
    channel_layers.backends = {}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def leader(store: MemoryStore) -> Feed:
    return Feed(store)


@pytest.fixture
def the_hub(store: MemoryStore) -> Iterator[hub.LiveHub]:
    one = hub.LiveHub(store, Sources())
    with mock.patch.object(consumers, "running_hub", return_value=one):
        yield one


@pytest_asyncio.fixture
async def world() -> worlds.World:
    return await sync_to_async(worlds.build)()


@pytest_asyncio.fixture
async def connect(world: worlds.World, the_hub: hub.LiveHub) -> AsyncIterator[Any]:
    """``await connect("alice")``: her dashboard, once it has been greeted."""
    opened: list[WebsocketCommunicator] = []

    async def open_as(who: str) -> Screen:
        socket = WebsocketCommunicator(APPLICATION, "/ws/live", headers=await cookies(world, who))
        opened.append(socket)
        connected, _ = await socket.connect(timeout=10)
        assert connected
        return Screen(socket)

    yield open_as
    for socket in opened:
        await socket.disconnect(timeout=10)


async def cookies(world: worlds.World, who: str) -> list[tuple[bytes, bytes]]:
    client = Client()
    await sync_to_async(client.force_login)(world.users[who])
    return [
        (b"cookie", f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode())
    ]


async def refused_with(headers: list[tuple[bytes, bytes]]) -> bool:
    socket = WebsocketCommunicator(APPLICATION, "/ws/live", headers=headers)
    connected, _ = await socket.connect(timeout=10)
    return not connected


async def test_nobody_gets_in_without_a_login(world: worlds.World, the_hub: hub.LiveHub) -> None:
    name = settings.SESSION_COOKIE_NAME.encode()
    assert await refused_with([])
    assert await refused_with([(b"cookie", name + b"=forged")])


async def test_a_user_without_any_role_is_refused(world: worlds.World, the_hub: hub.LiveHub) -> None:
    assert await refused_with(await cookies(world, "nora"))


async def test_without_a_database_nobody_gets_in_and_open_screens_go_on(
    world: worlds.World, connect: Any, leader: Feed
) -> None:
    with mock.patch.object(consumers, "RECHECK_S", 0.02):
        await leader.second()
        screen = await connect("alice")
        await screen.until(lambda: "llama" in screen.history)
        headers = await cookies(world, "bob")
        with mock.patch.object(consumers, "viewer_for", side_effect=OperationalError("gone")) as asked:
            assert await refused_with(headers)
            async with asyncio.timeout(20):
                while asked.call_count < 4:
                    await asyncio.sleep(0.01)
            latest = await leader.second()
            await screen.until(lambda: screen.pools["llama"]["seq"] == latest["seq"])


async def test_a_dashboard_is_greeted_then_sees_the_pool_and_its_history(connect: Any, leader: Feed) -> None:
    for _ in range(3):
        latest = await leader.second()
    screen = await connect("olga")
    hello = await screen.read()
    assert (hello["type"], hello["role"], hello["pools"]) == ("hello", "operator", ["llama"])
    await screen.until(lambda: "llama" in screen.history)
    assert screen.seen == ["hello", "snapshot", "history"]
    assert screen.pools["llama"] == latest
    assert [p["at"] for p in screen.history["llama"]] == [NOW + 1, NOW + 2, NOW + 3]


async def test_changes_keep_the_screen_equal_to_a_fresh_snapshot(connect: Any, leader: Feed) -> None:
    await leader.second()
    screen = await connect("adam")
    await screen.until(lambda: "llama" in screen.history)
    for n in range(5):
        leader.window.add([record(n)], leader.at_s)
        latest = await leader.second(waiting={"acme-llama": n}, backends=[])
        await screen.until(lambda seq=latest["seq"]: screen.pools["llama"]["seq"] == seq)
        assert screen.pools["llama"] == latest
    assert screen.seen[3:] == ["delta"] * 5


async def test_a_member_sees_only_its_own_tenant(connect: Any, leader: Feed) -> None:
    leader.window.add([record(1)], NOW)
    leader.window.add([refused(2, reason="token_budget")], NOW)
    await leader.second()
    screen = await connect("carol")
    await screen.until(lambda: "llama" in screen.history)
    for n in range(3):
        leader.window.add([refused(10 + n, reason="kv_budget")], leader.at_s)
        latest = await leader.second(waiting={"acme-llama": 100 + n, "globex-llama": n})
        await screen.until(lambda seq=latest["seq"]: screen.pools["llama"]["seq"] == seq)
        assert screen.pools["llama"] == snapshots.visible(latest, frozenset({"globex"}))
    assert screen.seen[3:] == ["delta"] * 3
    for foreign in ("acme", "premium", "token_budget", "kv_budget", "worker-1"):
        assert foreign not in screen.raw


async def test_lost_changes_heal_with_the_next_one(connect: Any, leader: Feed) -> None:
    await leader.second()
    screen = await connect("olga")
    await screen.until(lambda: "llama" in screen.history)
    await leader.second(lost=True)
    await leader.second(lost=True)
    latest = await leader.second(waiting={"acme-llama": 42})
    await screen.until(lambda: screen.pools["llama"]["seq"] == latest["seq"])
    assert screen.pools["llama"] == latest
    assert screen.gaps == 0, "the server noticed the gap before the client could"


async def test_with_every_change_lost_the_stored_snapshots_keep_screens_alive(connect: Any, leader: Feed) -> None:
    with mock.patch.object(hub, "QUIET_S", 0.05), mock.patch.object(hub, "COMPARE_S", 0.05):
        await leader.second()
        screen = await connect("olga")
        await screen.until(lambda: "llama" in screen.history)
        latest = await leader.second(lost=True, waiting={"acme-llama": 9})
        await screen.until(lambda: screen.pools["llama"] == latest)


async def test_a_client_that_lost_count_gets_the_snapshot_when_it_asks(connect: Any, leader: Feed) -> None:
    await leader.second()
    screen = await connect("alice")
    await screen.until(lambda: "llama" in screen.history)
    screen.pools["llama"]["seq"] -= 7  # it missed something
    latest = await leader.second()
    await screen.until(lambda: screen.gaps == 1)
    await screen.until(lambda: screen.pools["llama"]["seq"] == latest["seq"])
    assert screen.pools["llama"] == snapshots.visible(latest, frozenset({"acme"}))
    assert screen.seen[-1] == "snapshot"


async def test_who_sees_many_pools_is_sent_the_histories_that_it_asks_for(connect: Any, leader: Feed) -> None:
    names = [f"pool-{n:02d}" for n in range(hub.HISTORIES + 1)]
    for name in names:
        await leader.second(pool=replace(POOL, id=name))
    screen = await connect("olga")
    hello = await screen.read()
    assert (hello["pools"], hello["histories"]) == (names, False)
    await screen.until(lambda: len(screen.pools) == len(names))
    for _ in range(2):
        await screen.socket.send_to(text_data='{"type": "resync", "pool": "pool-03", "history": true}')
    await screen.until(lambda: "pool-03" in screen.history)
    await leader.second(pool=replace(POOL, id=names[0]))
    await screen.until(lambda: screen.seen[-1] == "delta")
    assert screen.seen.count("history") == 1, "once, and of no other pool"


async def test_asking_again_and_again_is_answered_once_a_second(connect: Any, leader: Feed) -> None:
    await leader.second()
    screen = await connect("alice")
    await screen.until(lambda: "llama" in screen.history)
    for _ in range(50):
        await screen.socket.send_to(text_data='{"type": "resync"}')
    latest = await leader.second()
    await screen.until(lambda: screen.pools["llama"]["seq"] == latest["seq"])
    assert screen.seen.count("snapshot") <= 3


@pytest.mark.parametrize(
    "text", [" ", "hello", "[]", '{"type": "subscribe"}', '{"type":"resync","pool":5}', "[" * 5000]
)
async def test_anything_else_from_a_client_is_told_and_survived(text: str, connect: Any, leader: Feed) -> None:
    await leader.second()
    screen = await connect("alice")
    await screen.until(lambda: "llama" in screen.history)
    await screen.socket.send_to(text_data=text)
    message = await screen.read()
    assert (message["type"], message["code"]) == ("error", "bad_message")
    latest = await leader.second()
    await screen.until(lambda: screen.pools["llama"]["seq"] == latest["seq"])


async def test_another_leader_continues_the_numbers(connect: Any, leader: Feed, store: MemoryStore) -> None:
    before = await leader.second()
    screen = await connect("olga")
    await screen.until(lambda: "llama" in screen.history)
    successor = Feed(store)
    successor.at_s = leader.at_s
    latest = await successor.second(epoch=2, leader="worker-2")
    assert latest["seq"] == before["seq"] + 1
    await screen.until(lambda: screen.pools["llama"] == latest)
    stale = await leader.second()  # the paused one wakes
    assert stale == latest, "a leader that was replaced overwrote its successor"


async def test_numbers_that_begin_again_after_redis_was_lost_are_followed(
    connect: Any, leader: Feed, store: MemoryStore
) -> None:
    for _ in range(5):
        await leader.second()
    screen = await connect("olga")
    await screen.until(lambda: "llama" in screen.history)
    store.stored.clear()
    successor = Feed(store)
    successor.at_s = leader.at_s
    latest = await successor.second(epoch=2)
    assert latest["seq"] == 1
    await screen.until(lambda: screen.pools["llama"] == latest)


async def test_a_pool_that_is_gone_is_taken_off_the_screen(connect: Any, leader: Feed, store: MemoryStore) -> None:
    with mock.patch.object(hub, "QUIET_S", 0.05), mock.patch.object(hub, "COMPARE_S", 0.05):
        await leader.second()
        screen = await connect("carol")
        await screen.until(lambda: "llama" in screen.history)
        store.stored.clear()
        await screen.until(lambda: not screen.pools)
        await leader.second()
        await screen.until(lambda: "llama" in screen.pools)


async def test_a_deleted_pool_leaves_the_screen_while_others_go_on(
    connect: Any, leader: Feed, store: MemoryStore
) -> None:
    other = replace(POOL, id="qwen")
    with mock.patch.object(hub, "QUIET_S", 0.05), mock.patch.object(hub, "COMPARE_S", 0.05):
        await leader.second()
        await leader.second(pool=other)
        screen = await connect("olga")
        await screen.until(lambda: {"llama", "qwen"} <= screen.history.keys())
        leader.publisher.keep_only({"qwen"})
        going_on = asyncio.create_task(seconds(leader, other))
        await screen.until(lambda: set(screen.pools) == {"qwen"})
        going_on.cancel()


async def seconds(leader: Feed, pool: PoolSpec) -> None:
    """A pool that never rests: its changes come faster than anything is quiet."""
    while True:
        await leader.second(pool=pool)
        await asyncio.sleep(0.01)


async def test_without_redis_screens_are_told_and_told_again_when_it_is_back(
    connect: Any, leader: Feed, store: MemoryStore
) -> None:
    with mock.patch.object(hub, "QUIET_S", 0.05), mock.patch.object(hub, "COMPARE_S", 0.05):
        await leader.second()
        screen = await connect("carol")
        await screen.until(lambda: "llama" in screen.history)
        store.available = False
        told = [await screen.read(), await screen.read()]
        (away,) = next(message for message in told if message["type"] == "sources")["away"]
        assert away["source"] == "redis"
        assert "at_least" not in away, "it answered while this process was there"
        assert [message["code"] for message in told if message["type"] == "error"] == ["state_unavailable"]
        store.available = True
        told = [await screen.read(), await screen.read()]
        assert [message["away"] for message in told if message["type"] == "sources"] == [[]]
        assert [message["code"] for message in told if message["type"] == "error"] == ["state_available"]


async def test_screens_are_told_that_redis_is_back_although_changes_never_paused(
    connect: Any, leader: Feed, store: MemoryStore
) -> None:
    with mock.patch.object(hub, "COMPARE_S", 0.05), mock.patch.object(hub, "QUIET_S", 3600.0):
        with mock.patch.object(hub, "QUIET_S", 0.05):
            await leader.second()
            screen = await connect("carol")
            await screen.until(lambda: "llama" in screen.history)
            store.available = False
            await screen.until(lambda: screen.state == "state_unavailable")
        store.available = True
        await leader.second()  # follows on the one before, and from now on the pool is never silent for long
        await screen.until(lambda: screen.state == "state_available")


async def test_what_screens_were_told_of_redis_is_taken_back_however_short_it_was(
    connect: Any, leader: Feed, the_hub: hub.LiveHub
) -> None:
    with mock.patch.object(hub, "COMPARE_S", 3600.0):  # looks only when the test does
        await leader.second()
        screen = await connect("alice")
        await screen.until(lambda: "llama" in screen.history)
        the_hub._seen.tell_pools({"llama": frozenset({"acme"}), "qwen": frozenset({"acme"})})
        the_hub._look_at_sources()
        the_hub._seen.tell_redis(False)  # an answer of a thread, before the screen's own turn
        last = await screen.read()
        assert (last["type"], last["pools"]) == ("sources", ["llama", "qwen"])
        the_hub._seen.tell_redis(True)
        the_hub._look_at_sources()
        await leader.second()
        while (message := await screen.read())["type"] != "delta":
            last = message
        assert last["away"] == []


async def test_a_fault_of_ours_does_not_end_the_comparing(connect: Any, leader: Feed, store: MemoryStore) -> None:
    with mock.patch.object(hub, "QUIET_S", 0.05), mock.patch.object(hub, "COMPARE_S", 0.05):
        await leader.second()
        screen = await connect("carol")
        await screen.until(lambda: "llama" in screen.history)
        with mock.patch.object(store, "load_all", side_effect=ValueError("a fault")) as failed:
            async with asyncio.timeout(30):
                while not failed.called:
                    await asyncio.sleep(0.01)
        await leader.second(lost=True)
        seq = screen.pools["llama"]["seq"]
        await screen.until(lambda: screen.pools["llama"]["seq"] == seq + 1)


async def test_a_screen_that_is_opened_without_redis_is_told_at_once_since_when_and_which_pools_there_are(
    connect: Any, store: MemoryStore, the_hub: hub.LiveHub
) -> None:
    seen = the_hub._seen
    seen.tell_pools({"llama": frozenset({"acme", "globex"}), "qwen": frozenset({"acme"})})
    seen.clock = lambda: NOW
    seen.tell_redis(True)
    seen.clock = lambda: NOW + 60
    store.available = False
    for who, pools in (("olga", ["llama", "qwen"]), ("carol", ["llama"])):
        hello = await (await connect(who)).read()
        assert hello["pools"] == []
        assert hello["sources"] == {"away": [{"source": "redis", "since": NOW}], "pools": pools}


async def test_a_socket_beats_while_nothing_happens(connect: Any, leader: Feed) -> None:
    with mock.patch.object(consumers, "HEARTBEAT_S", 0.05):
        screen = await connect("alice")
        await screen.until(lambda: screen.seen.count("heartbeat") == 2)


async def close_code(screen: Screen) -> int:
    async with asyncio.timeout(20):
        while True:
            event = await screen.socket.receive_output(timeout=20)
            if event["type"] == "websocket.close":
                return int(event["code"])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose rights the group was told of. As from another process, and screens ask by themselves only after an hour."""
    users: list[str] = []
    loop = asyncio.get_event_loop()

    def send(message: dict[str, Any]) -> None:
        users.append(message["user"])
        asyncio.run_coroutine_threadsafe(get_channel_layer().group_send(hub.GROUP, message), loop)

    monkeypatch.setattr(rights, "send", send)
    monkeypatch.setattr(consumers, "RECHECK_S", 3600.0)
    return users


@pytest.mark.parametrize("how", ["logout", "disabled", "role"])
async def test_a_screen_is_closed_as_soon_as_its_rights_are_gone(
    how: str, connect: Any, world: worlds.World, leader: Feed, told: list[str]
) -> None:
    await leader.second()
    screen, other = await connect("bob"), await connect("alice")
    for one in (screen, other):
        await one.until(lambda one=one: "llama" in one.history)
    bob = world.users["bob"]

    def revoke() -> None:
        if how == "logout":
            for session in Session.objects.all():
                if session.get_decoded()[SESSION_KEY] == str(bob.pk):
                    session.delete()
        elif how == "disabled":
            bob.is_active = False
            bob.save(update_fields=["is_active"])
        else:
            for membership in bob.memberships.all():
                services.delete(actor=SYSTEM, instance=membership)

    await sync_to_async(revoke)()
    assert await close_code(screen) == (consumers.NOT_A_MEMBER if how == "role" else consumers.NOT_LOGGED_IN)
    assert set(told) == {str(bob.pk)}
    await leader.second()
    await other.until(lambda: other.pools["llama"]["seq"] == 2)


async def test_a_screen_shows_another_tenant_as_soon_as_its_user_is_moved_there(
    connect: Any, world: worlds.World, leader: Feed, told: list[str]
) -> None:
    await leader.second()
    screen = await connect("bob")
    await screen.until(lambda: "llama" in screen.history)

    def move() -> None:
        bob = world.users["bob"]
        for membership in bob.memberships.all():
            services.delete(actor=SYSTEM, instance=membership)
        services.save(actor=SYSTEM, instance=worlds.Membership(user=bob, role="member", tenant=world.tenants["globex"]))

    await sync_to_async(_within_change)(move)
    await screen.until(lambda: set(screen.pools["llama"]["tenants"]) == {"globex"})


@pytest.mark.parametrize("how", ["logout", "disabled", "password"])
async def test_a_revoked_login_closes_the_socket(how: str, connect: Any, world: worlds.World, leader: Feed) -> None:
    with mock.patch.object(consumers, "RECHECK_S", 0.05):
        await leader.second()
        screen = await connect("alice")
        await screen.until(lambda: "llama" in screen.history)

        def revoke() -> None:
            from django.contrib.sessions.models import Session

            user = world.users["alice"]
            if how == "logout":
                Session.objects.all().delete()
            elif how == "disabled":
                user.is_active = False
                user.save()
            else:
                user.set_password("another-long-password")
                user.save()

        await sync_to_async(revoke)()
        assert await close_code(screen) == consumers.NOT_LOGGED_IN


async def test_a_lost_membership_closes_the_socket_and_a_changed_one_changes_the_view(
    connect: Any, world: worlds.World, leader: Feed
) -> None:
    with mock.patch.object(consumers, "RECHECK_S", 0.05):
        await leader.second()
        screen = await connect("bob")
        await screen.until(lambda: "llama" in screen.history)

        def move(tenant: str | None) -> None:
            for membership in world.users["bob"].memberships.all():
                services.delete(actor=SYSTEM, instance=membership)
            if tenant is not None:
                services.save(
                    actor=SYSTEM,
                    instance=worlds.Membership(user=world.users["bob"], role="member", tenant=world.tenants[tenant]),
                )

        await sync_to_async(_within_change)(lambda: move("globex"))
        await screen.until(lambda: set(screen.pools["llama"]["tenants"]) == {"globex"})
        await sync_to_async(move)(None)
        assert await close_code(screen) == consumers.NOT_A_MEMBER


def _within_change(work: Callable[[], None]) -> None:
    with services.change(actor=SYSTEM):
        work()


async def test_a_client_that_does_not_read_is_closed_and_the_others_go_on(
    connect: Any, the_hub: hub.LiveHub, leader: Feed
) -> None:
    await leader.second()
    reader = await connect("olga")
    await reader.until(lambda: "llama" in reader.history)
    (reading,) = the_hub._subscribers
    stalled = await connect("olga")
    await stalled.until(lambda: "llama" in stalled.history)
    send = consumers.LiveConsumer.send

    async def stall(socket: consumers.LiveConsumer, *args: Any, **kwargs: Any) -> None:
        if socket.subscriber is not reading:
            await asyncio.Event().wait()
        await send(socket, *args, **kwargs)

    with (
        mock.patch.object(consumers, "SEND_TIMEOUT_S", 0.1),
        mock.patch.object(consumers.LiveConsumer, "send", stall),
    ):
        latest = await leader.second()
        await reader.until(lambda: reader.pools["llama"] == latest)
        async with asyncio.timeout(20):
            while len(the_hub._subscribers) > 1:
                await asyncio.sleep(0.01)
        latest = await leader.second()
        await reader.until(lambda: reader.pools["llama"] == latest)
    assert the_hub._subscribers == {reading}
