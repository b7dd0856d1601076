"""Channels: what each kind is sent, to whom an alert goes, what happens when one does not take it, and who may."""

from __future__ import annotations

import smtplib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import httpx
import msgspec
import pytest
from django.core import mail
from django.core.exceptions import ValidationError
from django.utils import timezone
from rest_framework.test import APIClient

from telemetry.alerts import attempts, channels, lifecycle, notify, webhook
from telemetry.alerts.webhook import WebhookError
from telemetry.models import Alert, AlertDelivery, AlertRule, NotificationChannel
from tenants.models import AuditEntry
from tests.support import worlds
from tests.support.telemetry_world import NOW

pytestmark = pytest.mark.django_db

SLACK = "https://hooks.slack.test/services/T0/B0/secret"
KEY = "0123456789abcdef0123456789ABCDEF"


@pytest.fixture(autouse=True)
def installation(settings: Any) -> None:
    """Slack's host is listed, mail and a public address are set."""
    AlertRule.objects.all().delete()
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "hooks.slack.test, hooks.test"
    settings.QUARTERMASTER_WEBHOOK_SECRET = "s" * 16
    settings.QUARTERMASTER_PUBLIC_URL = "https://llm.test/"
    settings.EMAIL_HOST = "mail.test"
    settings.DEFAULT_FROM_EMAIL = "quartermaster@mail.test"


@pytest.fixture
def answers() -> Iterator[list[httpx.Request]]:
    """Everything that is posted, each answered with 200."""
    with posting(lambda request: httpx.Response(200)) as seen:
        yield seen


class posting:
    """Replaces the network by a function; what was asked of it."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self._seen: list[httpx.Request] = []
        client = httpx.Client

        def handle(request: httpx.Request) -> httpx.Response:
            self._seen.append(request)
            return answer(request)

        self._patch = mock.patch.object(
            webhook.httpx, "Client", lambda **options: client(transport=httpx.MockTransport(handle), **options)
        )

    def __enter__(self) -> list[httpx.Request]:
        self._patch.start()
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def channel(kind: str = "slack", target: str = SLACK, **changes: Any) -> NotificationChannel:
    return NotificationChannel.objects.create(**({"name": f"ops-{kind}", "kind": kind, "target": target} | changes))


def rule(*to: NotificationChannel, **changes: Any) -> AlertRule:
    made = AlertRule.objects.create(**({"name": "Deep <queue>", "kind": "queue_age", "threshold": 5} | changes))
    made.channels.set(to)
    return made


def fire(own: AlertRule, subject: str = "") -> Alert:
    line = "The oldest waits 9 s & <more>."
    assert lifecycle.fire(own, pool="llama", subject=subject, tenant="", line=line, value=9.0, at_s=NOW)
    return Alert.objects.get(rule=own, subject=subject)


def asked(request: httpx.Request) -> Any:
    return msgspec.json.decode(request.content)


# --- what each is sent


def test_slack_is_sent_one_text_with_a_link_in_which_nothing_of_ours_is_markup(answers: list[httpx.Request]) -> None:
    alert = fire(rule(channel()))
    assert notify.deliver() == 1
    [request] = answers
    assert str(request.url) == SLACK
    assert asked(request) == {
        "text": "*[warning] Deep &lt;queue&gt;*\nThe oldest waits 9 s &amp; &lt;more&gt;.\n"
        f"<https://llm.test/alerts/{alert.pk}|Open the incident>"
    }


def test_pagerduty_is_triggered_and_resolved_under_one_key(answers: list[httpx.Request]) -> None:
    alert = fire(rule(channel("pagerduty", KEY), severity="critical"))
    notify.deliver()
    lifecycle.resolve(Alert.objects.all(), "over")
    notify.deliver()
    first, last = (asked(request) for request in answers)
    assert str(answers[0].url) == "https://events.pagerduty.com/v2/enqueue"
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"] == f"quartermaster-alert-{alert.pk}"
    assert first["routing_key"] == KEY
    payload = first["payload"]
    assert (payload["severity"], payload["source"]) == ("critical", "llama")
    assert payload["summary"].startswith("[critical] Deep <queue>: The oldest waits 9 s")
    assert "payload" not in last


def test_email_has_the_facts_and_a_subject_of_one_line() -> None:
    fire(rule(channel("email", "ops@a.test, b@b.test"), name="A\nsubject"))
    assert notify.deliver() == 1
    [message] = mail.outbox
    assert message.subject == "[warning] A subject"
    assert message.to == ["ops@a.test", "b@b.test"]
    assert "pool: llama" in message.body
    assert "https://llm.test/alerts/" in message.body


def test_a_webhook_channel_is_signed_as_every_webhook_is(answers: list[httpx.Request]) -> None:
    alert = fire(rule(channel("webhook", "https://hooks.test/x")))
    notify.deliver()
    [request] = answers
    assert webhook.verify(
        "s" * 16, request.content, request.headers["x-quartermaster-signature"], timezone.now().timestamp()
    )
    assert (asked(request)["id"], asked(request)["link"]) == (
        f"alert-{alert.pk}",
        f"https://llm.test/alerts/{alert.pk}",
    )


# --- to whom


def test_a_rule_tells_its_channels_and_without_any_the_default_ones(answers: list[httpx.Request]) -> None:
    own = channel(name="own")
    channel(name="everything", target=SLACK + "2", for_all=True)
    channel(name="other", target=SLACK + "3")
    fire(rule(own))
    fire(rule(name="plain"))
    lifecycle.raise_alert("quota_hard", "q", "acme has used up its quota")
    notify.deliver()
    assert sorted(AlertDelivery.objects.values_list("alert__kind", "channel__name")) == [
        ("queue_age", "everything"), ("queue_age", "own"), ("quota_hard", "everything"),
    ]  # fmt: skip
    assert len(answers) == 3
    assert notify.deliver() == 0, "each once"


def test_a_channel_made_later_is_not_told_of_what_was(answers: list[httpx.Request]) -> None:
    fire(rule())
    channel(for_all=True)
    assert (notify.deliver(), answers) == (0, [])


def test_what_is_silenced_or_switched_off_is_not_sent(answers: list[httpx.Request]) -> None:
    alert = fire(rule(channel()))
    Alert.objects.update(silenced_until=timezone.now() + timedelta(hours=1))
    assert notify.deliver() == 0
    Alert.objects.update(silenced_until=None)
    NotificationChannel.objects.update(enabled=False)
    assert notify.deliver() == 0
    NotificationChannel.objects.update(enabled=True)
    assert notify.deliver() == 1
    assert alert.deliveries.get().delivered_at is not None


# --- when it is not taken


def test_a_failure_is_kept_with_its_reason_and_tried_again_later() -> None:
    fire(rule(channel()))
    with posting(lambda request: httpx.Response(404, stream=httpx.ByteStream(b"no_service\x00" + b"x" * 9000))) as seen:
        assert [notify.deliver(), notify.deliver()] == [0, 0]
        assert len(seen) == 1, "not before its time"
        delivery = AlertDelivery.objects.select_related("channel").get()
        assert delivery.problem == delivery.channel.problem
        assert delivery.problem.startswith("Slack answered 404: no_service xxx")
        assert len(delivery.problem) <= 300
        AlertDelivery.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))
        notify.deliver()
        assert len(seen) == 2
    with posting(lambda request: httpx.Response(200)):
        AlertDelivery.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))
        assert notify.deliver() == 1
    delivery.refresh_from_db()
    delivery.channel.refresh_from_db()
    assert (delivery.problem, delivery.channel.problem) == ("", "")


def test_one_channel_that_fails_holds_up_no_other_and_is_asked_once_a_round() -> None:
    bad, good = channel(name="a-bad"), channel(name="b-good", target=SLACK + "2")
    for name in ("one", "two", "three"):
        fire(rule(bad, good, name=name))
    with posting(
        lambda request: httpx.Response(200 if str(request.url).endswith("2") else 500, stream=httpx.ByteStream(b"x"))
    ) as seen:
        assert notify.deliver() == 3
    assert sorted(str(request.url).removeprefix(SLACK) for request in seen) == ["", "2", "2", "2"]


def _down_at_pagerduty(request: httpx.Request) -> httpx.Response:
    return httpx.Response(500 if "pagerduty" in request.url.host else 200, stream=httpx.ByteStream(b"x"))


def test_a_channel_with_more_unsent_alerts_than_a_round_takes_holds_up_no_other() -> None:
    broken = rule(channel("pagerduty", KEY), name="Old")
    for number in range(attempts.BATCH + 1):
        fire(broken, f"b{number}")
    fire(rule(channel()))
    with posting(_down_at_pagerduty) as seen:
        assert notify.deliver() == 1
    assert [request.url.host for request in seen] == ["events.pagerduty.com", "hooks.slack.test"]


def test_what_another_process_has_claimed_is_not_sent_twice(answers: list[httpx.Request]) -> None:
    fire(rule(channel()))

    def beaten(row: AlertDelivery, now: datetime) -> float | None:
        AlertDelivery.objects.update(attempts=1, next_attempt_at=now + timedelta(minutes=1))
        return attempts.claim(row, now)

    with mock.patch.object(notify, "claim", beaten):
        assert notify.deliver() == 0
    assert answers == []


def test_redirects_are_not_followed() -> None:
    with posting(
        lambda request: httpx.Response(
            302, headers={"location": "http://169.254.169.254/"}, stream=httpx.ByteStream(b"")
        )
    ) as seen:
        assert notify.try_channel(channel(), {**_told()}) == "Slack answered 302"
    assert len(seen) == 1


def test_a_host_that_is_taken_off_the_list_is_not_sent_to_any_more(settings: Any, answers: list[httpx.Request]) -> None:
    own = channel()
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "other.test"
    assert "hooks.slack.test is not among" in notify.try_channel(own, _told())
    assert answers == []


def test_a_mail_server_says_why_it_does_not_take_it() -> None:
    error = smtplib.SMTPDataError(552, b"5.3.4 too\nlarge")
    with mock.patch("django.core.mail.EmailMessage.send", side_effect=error):
        assert (
            notify.try_channel(channel("email", "a@b.test"), _told()) == "the mail server answered 552: 5.3.4 too large"
        )
    with mock.patch("django.core.mail.EmailMessage.send", side_effect=TimeoutError):
        assert "did not take it (TimeoutError)" in notify.try_channel(channel("email", "a@b.test", name="b"), _told())


def _told() -> dict[str, Any]:
    from telemetry.alerts.content import trial

    return trial()


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("slack", "https://evil.test/x"), ("slack", "http://127.0.0.1/"), ("slack", "nonsense"),
        ("webhook", "https://hooks.slack.test@evil.test/"), ("email", ""), ("email", "a@b.test," * 11),
        ("email", "a@b.test\nBcc: c@d.test"), ("email", "no address"), ("pagerduty", "short"),
        ("pagerduty", "x" * 31 + "/"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_right_is_refused(kind: str, target: str) -> None:
    with pytest.raises(ValidationError):
        channels.check(kind, target)


# --- who may


CAST = ("anonymous", "nora", "carol", "alice", "olga", "adam")
BODY = {"name": "ops", "kind": "slack", "target": SLACK}


def client(world: worlds.World, who: str) -> APIClient:
    api = APIClient()
    if who != "anonymous":
        api.force_login(world.users[who])
    return api


def test_operators_see_channels_admins_write_and_test_them_and_members_have_none(answers: list[httpx.Request]) -> None:
    world, one = worlds.build(), channel()
    path = "/api/v1/notification-channels"
    calls = {
        "list": lambda c: c.get(path),
        "make": lambda c: c.post(path, BODY, format="json"),
        "change": lambda c: c.patch(f"{path}/{one.pk}", {"for_all": True}, format="json"),
        "test": lambda c: c.post(f"{path}/{one.pk}/test"),
        "delete": lambda c: c.delete(f"{path}/{one.pk}"),
    }
    found = {name: [call(client(world, who)).status_code for who in CAST] for name, call in calls.items()}
    assert found == {
        "list": [401, 403, 404, 404, 200, 200],
        "make": [401, 403, 404, 404, 403, 201],
        "change": [401, 403, 404, 404, 403, 200],
        "test": [401, 403, 404, 404, 403, 200],
        "delete": [401, 403, 404, 404, 403, 204],
    }
    assert len(answers) == 1


@pytest.mark.parametrize("target", [SLACK, "https://hooks.slack.test?token=secret", "https://hooks.slack.test#secret"])
def test_a_target_is_written_and_never_read_again_neither_by_rest_nor_in_the_audit_log(target: str) -> None:
    api = client(worlds.build(), "adam")
    made = api.post("/api/v1/notification-channels", BODY | {"target": target}, format="json")
    assert made.json()["shown_target"] == "https://hooks.slack.test/…"
    assert "secret" not in made.content.decode() + api.get("/api/v1/notification-channels").content.decode()
    [entry] = AuditEntry.objects.filter(kind="notificationchannel")
    assert entry.after["target"] == "(set)"
    path = f"/api/v1/notification-channels/{made.json()['id']}"
    assert api.patch(path, {"for_all": True}, format="json").status_code == 200
    assert NotificationChannel.objects.get().target == target, "what is not sent stays"


def test_a_test_says_what_came_of_it_and_leaves_no_incident_open_at_pagerduty(answers: list[httpx.Request]) -> None:
    api, own = client(worlds.build(), "adam"), channel("pagerduty", KEY)
    path = f"/api/v1/notification-channels/{own.pk}/test"
    assert api.post(path).json() == {"sent": True, "problem": ""}
    assert [asked(request)["event_action"] for request in answers] == ["trigger", "resolve"]
    with mock.patch.object(channels, "_SENDERS", {"pagerduty": mock.Mock(side_effect=WebhookError("no"))}):
        assert api.post(path).json() == {"sent": False, "problem": "no"}
    [shown] = api.get("/api/v1/notification-channels").json()
    assert (shown["problem"], shown["sent_at"] is not None) == ("no", True)
    assert not Alert.objects.exists()


def test_a_rule_names_its_channels_and_the_change_is_in_the_audit_log() -> None:
    api = client(worlds.build(), "adam")
    channel(name="ops")
    made = api.post(
        "/api/v1/alert-rules",
        {"name": "late", "kind": "queue_age", "threshold": 30, "channels": ["ops"]},
        format="json",
    )
    assert made.json()["channels"] == ["ops"]
    api.patch(f"/api/v1/alert-rules/{made.json()['id']}", {"channels": []}, format="json")
    changed = AuditEntry.objects.filter(kind="alertrule").latest("pk")
    assert (changed.before, changed.after) == ({"channels": ["ops"]}, {"channels": []})
    wrong = api.post(
        "/api/v1/alert-rules", {"name": "l", "kind": "queue_age", "threshold": 3, "channels": ["nope"]}, format="json"
    )
    assert list(wrong.json()) == ["channels"]


def test_an_alert_is_assigned_to_somebody_who_may_act() -> None:
    world = worlds.build()
    alert = fire(rule())
    path = f"/api/v1/alerts/{alert.pk}/assign"
    assert client(world, "olga").get("/api/v1/alerts/assignees").json()["users"] == ["adam", "olga"]
    given = client(world, "adam").post(path, {"user": "olga"}, format="json").json()
    assert (given["assigned_to"], given["assigned_by"]) == ("olga", "adam")
    assert client(world, "olga").post(path, {"user": "carol"}, format="json").status_code == 400
    assert client(world, "carol").post(path, {"user": "olga"}, format="json").status_code == 404
    assert client(world, "carol").get("/api/v1/alerts/assignees").status_code == 404
    cleared = client(world, "olga").post(path, {"user": ""}, format="json").json()
    assert (cleared["assigned_to"], cleared["assigned_at"]) == ("", None)
    assert list(AuditEntry.objects.filter(kind="alert").order_by("pk").values_list("action", flat=True)) == [
        "assign",
        "unassign",
    ]
