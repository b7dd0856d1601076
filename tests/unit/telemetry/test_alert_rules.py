"""Alert rules: what they see, when they tell and when it is over, and who may write them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from rest_framework.test import APIClient

from scheduling.core.ledger.slo import CHANCE, MIN_JUDGED
from telemetry.alerts import lifecycle
from telemetry.alerts.conditions import Timer, right, seen, wrong
from telemetry.alerts.watch import AlertWatch
from telemetry.alerts.webhook import WebhookError
from telemetry.feed import snapshots
from telemetry.feed.history import is_out
from telemetry.feed.window import Window
from telemetry.models import Alert, AlertRule
from tenants.models import AuditEntry
from tests.support import worlds
from tests.support.telemetry_world import ENTITLEMENTS, NOW, record, sample

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_shipped_rules() -> None:
    AlertRule.objects.all().delete()


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


def rule(kind: str = "queue_age", threshold: float | None = 10.0, **changes: Any) -> AlertRule:
    values = {"name": f"a {kind}", "kind": kind, "threshold": threshold, "for_s": 30}
    return AlertRule.objects.create(**(values | changes))


def shot(at_s: float = NOW, **changes: Any) -> dict[str, Any]:
    """acme met 9 of 12, globex 12 of 12; the oldest waits 1.25 s; acme-llama has debt 0.0235."""
    window = Window()
    for n in range(12):
        window.add([record(n, done_s=at_s, received_s=at_s - 3, slo_met=n >= 3)], at_s)
        window.add(
            [record(100 + n, done_s=at_s, received_s=at_s - 3, tenant="globex", entitlement="globex-llama")], at_s
        )
    return snapshots.snapshot(sample(at_s, **changes), window, ENTITLEMENTS, 1)


class Bell:
    def __init__(self) -> None:
        self.rang = 0

    def __call__(self) -> None:
        self.rang += 1


def waits(watch: AlertWatch, *oldest: float, start_s: float = NOW) -> float:
    """Looks every five seconds at a queue whose oldest request waits so long; when it looked last."""
    for step, value in enumerate(oldest):
        watch.look(shot(start_s + 5 * step, oldest_wait_s=value), {})
    return start_s + 5 * (len(oldest) - 1)


# --- what is seen


def test_attainment_is_seen_of_a_pool_or_a_tenant_and_not_of_a_handful_of_requests() -> None:
    whole, acmes = rule("slo_attainment", 0.9), rule("slo_attainment", 0.9, name="b", tenant="acme")
    found = seen(whole, shot() | {"slo": {"attainment": 0.875, "asked": 24, "total": 24}}, {})[""]
    assert found.value == 21 / 24
    found = seen(acmes, shot(), {})["acme"]
    assert (found.value, found.tenant) == (0.75, "acme")
    assert wrong(acmes, found.value)
    few = snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1)
    assert seen(whole, few, {}) == {}


def test_a_tier_or_an_entitlement_that_misses_its_slo_is_seen_beside_a_majority_that_does_not() -> None:
    whole, acmes = rule("slo_attainment", 0.9), rule("slo_attainment", 0.9, name="b", tenant="acme")
    batch = {"attainment": 1.0, "asked": 267, "total": 267}
    premium = {"attainment": 0.714, "asked": 35, "total": 25}
    few = {"attainment": 0.5, "asked": 2, "total": 2}
    slo = {"attainment": 0.957, "asked": 311, "total": 301}
    pool = shot() | {"slo": slo | {"by_tier": {"batch": batch, "premium": premium, "standard": few, "spot": {}}}}
    found = seen(whole, pool, {})[""]
    assert (found.value, wrong(whole, found.value)) == (0.714, True)
    assert found.line.startswith("71.4% of the premium requests of pool llama met their SLO"), found.line
    assert found.line.endswith("(10 of 35 were refused)")

    rows = {"acme-llama": premium | {"tenant": "acme"}, "acme-batch": batch | {"tenant": "acme"}}
    rows["globex-llama"] = premium | {"tenant": "globex", "attainment": 0.1}
    found = seen(acmes, shot() | {"tenants": {"acme": {"slo": slo}}, "entitlements": rows}, {})["acme"]
    assert (found.value, found.tenant) == (0.714, "acme")
    assert "the requests of entitlement acme-llama in pool llama" in found.line


def test_few_requests_are_seen_where_too_few_are_in_time_to_be_chance() -> None:
    whole = rule("slo_attainment", 0.9)
    batch = {"attainment": 0.99, "asked": 341, "total": 341}

    def found(**premium: float) -> tuple[float, bool]:
        slo = {"attainment": 0.98, "asked": 350, "total": 350, "by_tier": {"batch": batch, "premium": premium}}
        one = seen(whole, shot() | {"slo": slo}, {})[""]
        return one.value, wrong(whole, one.value)

    assert found(attainment=0.0, asked=9, total=0) == (0.0, True)
    assert found(attainment=0.4, asked=5, total=5) == (0.4, True)
    assert found(attainment=0.5, asked=2, total=2) == (0.98, False)
    assert found(attainment=0.0, asked=1, total=0) == (0.98, False)
    alone = {"attainment": 0.0, "asked": 4, "total": 0, "by_tier": {}}
    assert seen(whole, shot() | {"slo": alone}, {})[""].line.endswith("(4 of 4 were refused)")
    refused = {"rates": {"refused": 4 / 60, "completed": 0.0, "failed": 0.0, "cancelled": 0.0}}
    refusals = rule("refusals", 0.3, name="r")
    assert seen(refusals, shot() | refused, {})[""].value == 1.0
    refused["rates"] |= {"refused": 1 / 60, "completed": 3 / 60}
    assert seen(refusals, shot() | refused, {}) == {}, "one of four"


def test_the_console_judges_from_as_many_requests_as_alert_rules() -> None:
    verdict = (Path(__file__).parents[3] / "frontend/src/pages/overview/verdict.ts").read_text()
    assert f"export const MIN_JUDGED = {MIN_JUDGED};" in verdict
    assert f"const CHANCE = {CHANCE};" in verdict


def test_each_entitlement_backend_and_quota_is_a_subject_of_its_own() -> None:
    assert set(seen(rule("debt", 0.5), shot(), {})) == {"acme-llama"}, "globex has no debt that is known"
    assert {n: s.value for n, s in seen(rule("backend_health", None), shot(), {}).items()} == {"gpu-1": 0.0}
    shares = {("acme", "day"): (90, 100), ("globex", "month"): (1, 4)}
    assert {n: s.value for n, s in seen(rule("quota", 0.8), shot(), shares).items()} == {
        "acme day": 0.9,
        "globex month": 0.25,
    }
    assert set(seen(rule("quota", 0.8, name="q", tenant="globex"), shot(), shares)) == {"globex month"}
    assert seen(rule(name="elsewhere", pool="qwen"), shot(), {}) == {}


def test_between_threshold_and_clear_threshold_it_is_neither_wrong_nor_right() -> None:
    slo = rule("slo_attainment", 0.9, clear_threshold=0.95)
    expected = [(True, False), (False, False), (False, True)]
    assert [(wrong(slo, v), right(slo, v)) for v in (0.89, 0.92, 0.96)] == expected
    queue = rule("queue_age", 60.0, clear_threshold=30.0)
    assert [(wrong(queue, v), right(queue, v)) for v in (61, 45, 29)] == expected


def test_a_timer_begins_anew_whenever_it_is_not_so() -> None:
    timer = Timer()
    said = [
        timer.lasts(so, at, 10.0) for at, so in ((0, True), (5, True), (8, False), (9, True), (18, True), (19, True))
    ]
    assert said == [False, False, False, False, False, True]


# --- when it is told


def test_an_alert_opens_after_it_was_wrong_for_long_enough_and_ends_after_it_was_right_as_long() -> None:
    queue, bell = rule(threshold=10.0, clear_threshold=5.0, for_s=20), Bell()
    watch = AlertWatch(bell)
    at = waits(watch, 12, 12, 12, 12)
    assert not Alert.objects.exists()
    at = waits(watch, 12, start_s=at + 5)
    (alert,) = Alert.objects.all()
    assert (alert.state, alert.rule, alert.pool, alert.value) == ("open", queue, "llama", 12.0)
    assert "waits 12 s, longer than 10 s for 20 s." in alert.line
    at = waits(watch, 12, 4, 7, 4, 4, 4, 4, start_s=at + 5)  # 7 s is not yet right: counting begins anew
    assert Alert.objects.get().state == "open"
    waits(watch, 4, start_s=at + 5)
    assert Alert.objects.get().state == "resolved"
    assert bell.rang == 2


def test_what_flickers_is_not_told() -> None:
    rule(threshold=10.0, for_s=20)
    waits(AlertWatch(Bell()), *(12, 12, 12, 1) * 6)
    assert not Alert.objects.exists()


def test_two_leaders_tell_once_and_the_next_one_knows_what_is_open() -> None:
    rule(threshold=10.0, for_s=0)
    waits(AlertWatch(Bell()), 12)
    waits(AlertWatch(Bell()), 12)
    assert Alert.objects.count() == 1
    waits(AlertWatch(Bell()), 1)
    assert Alert.objects.get().state == "resolved"
    waits(AlertWatch(Bell()), 12, start_s=NOW + 60)
    assert Alert.objects.count() == 2, "the same again is another alert"


def test_a_backend_that_is_removed_while_its_alert_is_open_ends_it() -> None:
    rule("backend_health", None, for_s=0)
    watch = AlertWatch(Bell())
    down = shot()
    down["backends"]["gpu-1"] |= {"state": "ejected", "why": "no token for 15 s"}
    watch.look(down, {})
    assert "gpu-1 of pool llama is ejected: no token for 15 s." in Alert.objects.get().line
    watch.look(shot(NOW + 5) | {"backends": {}}, {})
    assert Alert.objects.get().state == "resolved"


def test_a_pool_that_sleeps_or_wakes_alerts_nobody_and_one_that_cannot_be_woken_does() -> None:
    rule("backend_health", None, for_s=10)
    watch = AlertWatch(Bell())
    at_s = NOW
    for state, why in [("asleep", "put to sleep: nothing ran or waited"), ("waking", "it starts")] * 4:
        at_s += 5
        watch.look(shot(at_s) | {"backends": {"gpu-1": {"state": state, "why": why}}}, {})
    watch.look(shot(at_s + 5) | {"backends": {}}, {})  # scaled to zero
    assert not Alert.objects.exists()
    failed = {"state": "asleep", "why": "asleep; it could not be woken: 500", "wake_fails": True}
    for step in range(4):
        watch.look(shot(at_s + 10 + 5 * step) | {"backends": {"gpu-1": failed}}, {})
    assert "gpu-1 of pool llama is asleep: asleep; it could not be woken: 500" in Alert.objects.get().line
    for step in range(4):
        ready = {"state": "ready", "why": "answered a one-token probe"}
        watch.look(shot(at_s + 40 + 5 * step) | {"backends": {"gpu-1": ready}}, {})
    assert Alert.objects.get().state == "resolved"


@pytest.mark.parametrize("fails", [False, True])
def test_a_snapshot_says_of_a_sleeper_whether_it_can_be_woken(fails: bool) -> None:
    taken = sample()
    [first, *others] = taken.backends
    asleep = replace(first, state="asleep", why="put to sleep", wake_fails=fails)
    row = snapshots.snapshot(replace(taken, backends=(asleep, *others)), Window(), ENTITLEMENTS, 1)["backends"][
        first.id
    ]
    assert row.get("wake_fails", False) is fails
    assert is_out(row) is fails


def test_a_quota_belongs_to_its_tenant_and_to_no_pool() -> None:
    rule("quota", 0.8, for_s=0)
    watch = AlertWatch(Bell())
    for pool in ("llama", "qwen"):
        watch.look(shot() | {"pool": pool}, {("acme", "month"): (84, 100)})
    alert = Alert.objects.get()
    assert (alert.pool, alert.tenant, alert.subject) == ("", "acme", "acme month")
    assert "84%" in alert.line


def test_rules_that_are_off_and_looks_too_soon_tell_nothing() -> None:
    rule(threshold=10.0, for_s=0, enabled=False)
    watch = AlertWatch(Bell())
    waits(watch, 12)
    AlertRule.objects.update(enabled=True)
    watch.look(shot(NOW + 4.0, oldest_wait_s=12), {})
    assert not Alert.objects.exists()
    watch.look(shot(NOW + 5.0, oldest_wait_s=12), {})
    assert Alert.objects.exists()


def test_alerts_of_a_pool_that_is_gone_end(world: worlds.World) -> None:
    own = rule(for_s=0)
    for pool in ("llama", "gone"):
        lifecycle.fire(own, pool=pool, subject="", tenant="", line="x", value=1.0, at_s=NOW)
    lifecycle.tidy()
    assert dict(Alert.objects.values_list("pool", "resolution")) == {"llama": "", "gone": "The pool is gone."}


# --- to whom it is sent


def test_beginning_and_end_are_delivered_each_with_an_id_of_its_own(settings: Any) -> None:
    settings.QUARTERMASTER_ALERT_WEBHOOK = "http://hooks.test/a"
    own = rule(for_s=0)
    lifecycle.fire(own, pool="llama", subject="", tenant="", line="It waits.", value=12.0, at_s=NOW)
    sent: list[tuple[str, dict[str, Any]]] = []
    with mock.patch(
        "telemetry.alerts.lifecycle.post", side_effect=lambda url, secret, id_, content: sent.append((url, content))
    ):
        assert [lifecycle.deliver(), lifecycle.deliver()] == [1, 0]
        assert lifecycle.resolve(Alert.objects.all(), "It waits no more")
        assert [lifecycle.deliver(), lifecycle.deliver()] == [1, 0]
    number = Alert.objects.get().pk
    assert [(url, c["id"], c["status"], c["text"]) for url, c in sent] == [
        ("http://hooks.test/a", f"alert-{number}", "firing", "It waits."),
        ("http://hooks.test/a", f"alert-{number}-resolved", "resolved", "It waits no more"),
    ]


def test_a_rules_own_webhook_is_used_only_while_its_host_is_allowed(settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "hooks.test:8080, chat.test"
    own = rule(for_s=0, webhook="http://hooks.test:8080/x")
    lifecycle.fire(own, pool="llama", subject="", tenant="", line="x", value=1.0, at_s=NOW)
    with mock.patch("telemetry.alerts.lifecycle.post", side_effect=WebhookError("no")) as post:
        assert lifecycle.deliver() == 0
        assert post.call_args.args[0] == "http://hooks.test:8080/x"
        Alert.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))
        settings.QUARTERMASTER_WEBHOOK_HOSTS = "chat.test"
        assert lifecycle.deliver() == 0
        assert post.call_count == 1, "what is not allowed any more is not sent to"


@pytest.mark.parametrize(
    "url",
    ["ftp://chat.test/x", "http://", "http://other.test/", "http://chat.test@other.test/", "http://u:p@chat.test/",
     "http://chat.test.evil.test/", "http://127.0.0.1/"],
)  # fmt: skip
def test_only_listed_hosts_may_be_sent_to(url: str, settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "chat.test"
    lifecycle.check_webhook("https://chat.test/hook")
    with pytest.raises(ValidationError):
        lifecycle.check_webhook(url)


# --- who may


CAST = ("anonymous", "nora", "carol", "alice", "olga", "adam")
BODY = {"name": "late", "kind": "queue_age", "threshold": 30, "for_s": 10}


def client(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    if who != "anonymous":
        api.force_login(world.users[who])
    return api


def test_operators_see_rules_admins_write_them_and_members_have_none(world: worlds.World) -> None:
    one = rule()
    calls = {
        "list": lambda c: c.get("/api/v1/alert-rules"),
        "make": lambda c: c.post("/api/v1/alert-rules", BODY, format="json"),
        "change": lambda c: c.patch(f"/api/v1/alert-rules/{one.pk}", {"threshold": 20}, format="json"),
        "delete": lambda c: c.delete(f"/api/v1/alert-rules/{one.pk}"),
    }
    found = {name: [call(client(world, who)).status_code for who in CAST] for name, call in calls.items()}
    assert found == {
        "list": [401, 403, 404, 404, 200, 200],
        "make": [401, 403, 404, 404, 403, 201],
        "change": [401, 403, 404, 404, 403, 200],
        "delete": [401, 403, 404, 404, 403, 204],
    }
    assert AuditEntry.objects.filter(kind="alertrule").count() == 3


def test_switching_off_or_deleting_a_rule_ends_its_alerts(world: worlds.World) -> None:
    one, other = rule(for_s=0), rule(name="other", for_s=0)
    for own in (one, other):
        lifecycle.fire(own, pool="llama", subject="", tenant="", line="x", value=1.0, at_s=NOW)
    adam = client(world, "adam")
    adam.patch(f"/api/v1/alert-rules/{one.pk}", {"enabled": False}, format="json")
    adam.delete(f"/api/v1/alert-rules/{other.pk}")
    assert sorted(Alert.objects.values_list("resolution", flat=True)) == [
        "The rule was deleted.",
        "The rule was switched off.",
    ]
    assert {a.state for a in Alert.objects.all()} == {"resolved"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "weather"}, "kind"), ({"threshold": None}, "threshold"),
        ({"kind": "slo_attainment", "threshold": 90}, "threshold"), ({"clear_threshold": 31}, "clear_threshold"),
        ({"kind": "slo_attainment", "threshold": 0.9, "clear_threshold": 0.8}, "clear_threshold"),
        ({"pool": "nowhere"}, "pool"), ({"kind": "quota", "threshold": 0.9, "pool": "llama"}, "pool"),
        ({"tenant": "acme"}, "tenant"), ({"kind": "debt", "tenant": "nobody"}, "tenant"),
        ({"webhook": "http://169.254.169.254/"}, "webhook"), ({"for_s": -1}, "for_s"),
    ],
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused_at_its_field(
    changes: dict[str, Any], field: str, world: worlds.World
) -> None:
    answer = client(world, "adam").post("/api/v1/alert-rules", BODY | changes, format="json")
    assert answer.status_code == 400
    assert list(answer.json()) == [field]


def test_open_alerts_are_counted_within_sight(world: worlds.World) -> None:
    own = rule(for_s=0)
    AlertRule.objects.filter(pk=own.pk).update(severity="critical")
    own.refresh_from_db()
    for tenant in ("", "acme", "globex"):
        lifecycle.fire(own, pool="llama", subject=tenant, tenant=tenant, line="x", value=1.0, at_s=NOW)
    lifecycle.resolve(Alert.objects.filter(tenant="globex"), "over")
    counts = {who: client(world, who).get("/api/v1/alerts/open").json() for who in ("alice", "carol", "olga")}
    assert counts == {
        "alice": {"open": 1, "critical": 1, "unwatched": []},
        "carol": {"open": 0, "critical": 0, "unwatched": []},
        "olga": {"open": 2, "critical": 2, "unwatched": []},
    }
    states = {
        s: len(client(world, "olga").get(f"/api/v1/alerts?state={s}").json()["results"]) for s in ("open", "resolved")
    }
    assert states == {"open": 2, "resolved": 1}
    assert client(world, "olga").get("/api/v1/alerts?state=odd").status_code == 400
