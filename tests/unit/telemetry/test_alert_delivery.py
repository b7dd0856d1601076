"""Alerts are sent by the process that opened them: no task waits before them, and nothing is sent twice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import DatabaseError

from telemetry.alerts import attempts, lifecycle, webhook
from telemetry.alerts.delivery import Delivery
from telemetry.models import Alert, AlertRule


class Sender:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.sent = 0
        self.turns = threading.Semaphore(0)
        self.threads: set[str] = set()

    def __call__(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.turns.release()
        if self.failures:
            raise self.failures.pop(0)
        self.sent += 1

    def took_a_turn(self) -> bool:
        return self.turns.acquire(timeout=10)


def ended(delivery: Delivery) -> bool:
    for _ in range(1000):
        if not delivery._runs:
            return True
        threading.Event().wait(0.01)
    return False


def test_what_is_due_is_sent_at_once_on_a_thread_of_its_own_which_ends() -> None:
    send = Sender()
    delivery = Delivery(send, pauses_s=(0.0,))
    delivery.call()
    assert send.took_a_turn()
    assert ended(delivery)
    assert send.threads == {"alerts"}
    delivery.call()
    assert send.took_a_turn()
    assert ended(delivery)
    assert send.sent == 2


def test_a_failure_is_tried_again_after_a_pause() -> None:
    send = Sender(DatabaseError("away"), RuntimeError("odd"))
    delivery = Delivery(send, pauses_s=(0.0, 0.01, 0.01))
    delivery.call()
    assert ended(delivery)
    assert send.sent == 1


def test_a_call_while_it_waits_for_its_next_attempt_is_answered_now() -> None:
    send = Sender()
    delivery = Delivery(send, pauses_s=(0.0, 3600.0))
    delivery.call()
    assert send.took_a_turn()
    delivery.call()
    assert send.took_a_turn()


@pytest.mark.django_db
def test_two_processes_do_not_send_the_same_alert_to_the_webhook(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUARTERMASTER_ALERT_WEBHOOK = "http://hooks.test/"
    lifecycle.raise_alert("quota_hard", "one", "acme used its quota")
    sent: list[str] = []

    def post(address: str, secret: str, number: str, body: Any) -> None:
        sent.append(number)
        assert lifecycle.deliver() == 0, "another process, while this one sends"

    monkeypatch.setattr(lifecycle, "post", post)
    assert lifecycle.deliver() == 1
    assert sent == [f"alert-{Alert.objects.get().pk}"]
    assert lifecycle.deliver() == 0


@pytest.mark.django_db
def test_a_receiver_that_fails_is_tried_once_a_round_and_holds_up_no_other(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUARTERMASTER_ALERT_WEBHOOK = "http://down.test/"
    settings.QUARTERMASTER_WEBHOOK_HOSTS = "hooks.test"
    for number in range(attempts.BATCH + 1):
        lifecycle.raise_alert("quota_hard", f"n{number}", "acme used its quota")
    own = AlertRule.objects.create(name="own", kind="ttft", threshold=1, webhook="https://hooks.test/")
    lifecycle.raise_alert("ttft", "last", "premium is late", rule=own)
    tried: list[str] = []

    def post(address: str, secret: str, number: str, body: Any) -> None:
        tried.append(address)
        if "down" in address:
            raise webhook.WebhookError("did not answer within 15 s")

    monkeypatch.setattr(lifecycle, "post", post)
    assert lifecycle.deliver() == 1
    assert tried == ["http://down.test/", "https://hooks.test/"]


@contextmanager
def dripping(beginning: bytes) -> Iterator[str]:
    """A receiver that answers byte by byte, and never to the end."""
    stopped = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(beginning)
            while not stopped.wait(0.05):
                connection.sendall(b"x")

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=listen, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        finally:
            stopped.set()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("beginning", "told"),
    [
        (b"HTTP/1.1 200 OK\r\nx-long: ", "did not answer within"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 9999\r\n\r\n", "answered 500: x"),
    ],
    ids=["its head", "its body"],
)
def test_a_receiver_that_answers_byte_by_byte_holds_up_nobody(
    beginning: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(webhook, "WHOLE_S", 1.5)
    with dripping(beginning) as address, pytest.raises(webhook.WebhookError, match=told):
        webhook.send(address, b"{}", {}, "the webhook")
