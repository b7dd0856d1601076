"""A world with a row for every kind of id, and who sends requests of any shape to the management API."""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.core.signals import got_request_exception
from django.db import transaction
from django.http import HttpRequest
from django.test import override_settings
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from fido2.cose import ES256
from fido2.utils import websafe_encode
from fido2.webauthn import AttestedCredentialData
from rest_framework.test import APIClient

from controlplane.batches.models import Batch
from controlplane.signin.adapters import SECOND_FACTOR
from controlplane.signin.api import OFFERED
from telemetry.ledger import writer
from telemetry.models import Alert, AlertRule, LabRun, NotificationChannel, SavedView, ScalingState
from tenants import passkeys, people, second_factors, services, tuning
from tenants.audit import SYSTEM
from tenants.models import Adapter, AuditEntry, Budget, GroupRule, Pool, Price, Project, Quota, Trial
from tenants.sealed import seal
from tests.support import worlds
from tests.support.authenticator import Device
from tests.support.telemetry_world import record


@pytest.fixture
def world() -> worlds.World:
    return worlds.build()


@pytest.fixture
def places(world: worlds.World) -> dict[str, str]:
    """A row for every kind of id that a route may have."""
    pool, now = Pool.objects.get(slug="llama"), timezone.now()
    start = now.timestamp() - 60
    writer.write(
        [
            record(
                n, received_s=start + n, queued_s=start + n, granted_s=start + n + 0.1, first_token_s=start + n + 0.3,
                done_s=start + n + 1,
            )
            for n in range(1, 31)
        ]
    )  # fmt: skip
    trial = Trial.objects.create(
        pool=pool, at=now, study=now, number=1, base=tuning.version_now(pool), values={}, reward=0.9,
        params=pool.policy_params, window_from=now, window_until=now,
    )  # fmt: skip
    Pool.objects.filter(pk=pool.pk).update(scaling_mode="advise", policy="hybrid", policy_params={})
    ScalingState.objects.create(pool="llama", at=now, epoch=1, mode="advise", current=2, wanted=3, reason="up")
    rule = AlertRule.objects.create(name="a rule", kind="queue_age", threshold=5)
    alert = Alert.objects.create(
        at=now, kind="queue_age", name="queue", severity="warning", rule=rule, subject="llama", line="deep"
    )
    api = APIClient()
    api.force_login(world.users["adam"])
    kept = api.post("/api/v1/lab/recordings", {"name": "kept", "pool": "llama", "minutes": 60}, format="json")
    assert kept.status_code == 201, kept.content
    channel = NotificationChannel.objects.create(name="ops", kind="slack", target="http://nowhere.test/x")
    run = LabRun.objects.create(
        name="r", recording_id=kept.json()["id"], pool="llama", author="adam", total=1,
        asked={"policies": ["now"], "variants": 1, "replicas": 0, "slos": None},
    )  # fmt: skip
    batch = Batch.objects.create(
        public_id="batch_1", tenant="acme", entitlement="acme-llama", key_id="k", endpoint="/v1/chat/completions",
        model="llama", completion_window="24h", input_file="file-1", input_name="x", status="in_progress", total=4,
        completed=1, created_at=now, in_progress_at=now, expires_at=now,
    )  # fmt: skip
    return {
        "batches": batch.public_id,
        "alert-rules": str(rule.pk), "alerts": str(alert.pk), "audit": str(AuditEntry.objects.latest("pk").pk),
        "backends": "gpu-1", "entitlements": "acme-llama", "keys": world.keys["acme"].row.public_id,
        "adapters": services.save(actor=SYSTEM, instance=Adapter(slug="sql", pool=pool, model="llama-sql")).slug,
        "runs": str(run.pk), "memberships": str(world.users["alice"].memberships.get().pk), "pools": "llama",
        "notification-channels": str(channel.pk),
        "passkeys": str(_passkey(world.users["adam"]).pk),
        "people": str(people.make_service_account(actor=SYSTEM, username="bot", description="").pk),
        "invitations": people.invite(actor=SYSTEM, name="Ada", role="operator", tenant=None).row.public_id,
        "sessions": str(UserSession.objects.get(user=world.users["adam"]).pk),
        "group-rules": str(services.save(actor=SYSTEM, instance=GroupRule(group="ops", role="operator")).pk),
        "saved-views": str(SavedView.objects.create(user=world.users["adam"], name="mine").pk),
        "slos": "interactive", "prices": str(services.save(actor=SYSTEM, instance=Price(pool=pool)).pk),
        "requests": record(1).request_id,
        "projects": services.save(actor=SYSTEM, instance=Project(slug="chat", tenant=world.tenants["acme"])).slug,
        "budgets": str(services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], hard_amount=5)).pk),
        "quotas": str(services.save(actor=SYSTEM, instance=Quota(tenant=world.tenants["acme"], hard_tokens=5)).pk),
        "tenants": "acme", "tiers": "premium", "tokens": world.tokens["adam"].row.public_id, "trials": str(trial.pk),
    }  # fmt: skip


class Tried:
    """Sends requests as an admin and keeps what was answered with a 5xx, or refused without a word."""

    def __init__(self, api: APIClient) -> None:
        self._api = api
        self.answers: Counter[int] = Counter()
        self.faults: dict[str, str] = {}  # what went wrong where -> the first request that did it
        self.last: tuple[dict[str, str], bytes] = ({}, b"")  # headers and body of the last answer

    def __call__(self, verb: str, path: str, body: bytes | None = None, **more: Any) -> int:
        raised: list[str] = []

        def note(sender: Any, request: Any = None, **_: Any) -> None:
            kind, error, trace = sys.exc_info()
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            at = (
                f"{trace.tb_frame.f_code.co_filename.rpartition('site-packages/')[2]}:{trace.tb_lineno}"
                if trace
                else ""
            )
            raised.append(f"{kind.__name__ if kind else ''} at {at}: {str(error)[:120]}")

        got_request_exception.connect(note)
        try:
            point = transaction.savepoint()
            extra = {"content_type": "application/json"} | more if body is not None else more
            answer = self._api.generic(verb.upper(), path, body or b"", **extra)
            text = b"".join(answer.streaming_content) if answer.streaming else answer.content
            transaction.savepoint_rollback(point)
        finally:
            got_request_exception.disconnect(note)
        status = answer.status_code
        self.last = (dict(answer.headers), text)
        self.answers[status] += 1
        said = f"{verb} {path[:200]} {(body or b'')[:120]!r} {more or ''} -> {status}"
        if status >= 500:
            self.faults.setdefault(raised[0] if raised else f"{status} {text[:100]!r}", said)
        elif status >= 400 and path.startswith("/api/"):
            problem = _wordless(answer.headers.get("Content-Type", ""), text)
            if problem:
                self.faults.setdefault(f"{problem} {re.sub('[0-9]+', 'N', path[:40])}", said)
        return status

    def told(self) -> str:
        lines = [f"  {fault}\n      {first}" for fault, first in self.faults.items()]
        return f"{len(lines)} kinds of fault in {sum(self.answers.values())} requests:\n" + "\n".join(lines)


def _wordless(kind: str, text: bytes) -> str:
    """Why an error is no help: an API answers with JSON that has at least one sentence in it."""
    if "csv" in kind or "openapi" in kind:
        return "" if text.strip() else "empty"
    try:
        told = json.loads(text)
    except ValueError:
        return f"not JSON ({kind})"
    found = json.dumps(told)
    return "" if re.search(r"[A-Za-z]{3,}\W.*[a-z]{2}", found) else f"no sentence: {found[:100]}"


def _passkey(user: User) -> Authenticator:
    """Of whoever asks; it signs nothing, since what it signs is not read here."""
    key = ES256.from_cryptography_key(Device().key.public_key())
    credential = AttestedCredentialData.create(aaguid=bytes(16), credential_id=b"device", public_key=key)
    data = {"name": "device", "credential": websafe_encode(bytes(credential)), "count": 0}
    return Authenticator.objects.create(user=user, type="webauthn", data=data)


@pytest.fixture
def tried(world: worlds.World, places: dict[str, str], redis_url: str) -> Iterator[Tried]:
    api = APIClient(raise_request_exception=False)
    adam = world.users["adam"]
    adam.set_password("correct horse battery")
    adam.save()
    api.force_login(adam)
    secret = second_factors.offer(adam).secret
    Authenticator.objects.create(user=adam, type="totp", data={"secret": seal(secret, SECOND_FACTOR)})
    session = api.session
    session[OFFERED] = seal(secret, SECOND_FACTOR)
    session.save()

    def whose(request: HttpRequest) -> User | AnonymousUser:
        """Thousands of requests come from one session: its row and Adam's were a quarter of the time."""
        return copy.copy(adam) if settings.SESSION_COOKIE_NAME in request.COOKIES else AnonymousUser()

    with (
        mock.patch("django.contrib.auth.get_user", whose),
        mock.patch.object(second_factors, "step_of", return_value=1),  # whatever the code is
        mock.patch.object(second_factors, "check", return_value=True),
        mock.patch.object(passkeys, "add"),  # whatever the device signed
        mock.patch.object(second_factors, "remove_passkey", return_value=True),  # the row stays for the next try
        override_settings(QUARTERMASTER_REDIS_URL=redis_url),
        mock.patch("controlplane.lab.tasks.run_lab.apply_async"),
        mock.patch("controlplane.batches.services.notify"),
    ):
        logging.disable(logging.CRITICAL)  # a traceback for each fault would be megabytes
        try:
            yield Tried(api)
        finally:
            logging.disable(logging.NOTSET)


def _operations() -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """(verb, path, operation, schema of the JSON body's fields), in a fixed order."""
    schema = SchemaGenerator().get_schema(public=True)
    parts = schema["components"]["schemas"]

    def fields(node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in node:
            node = parts[node["$ref"].rpartition("/")[2]]
        found = dict(node.get("properties", {}))
        for each in node.get("allOf", ()):
            found |= fields(each)
        return found

    out = []
    for path, verbs in sorted(schema["paths"].items()):
        for verb, operation in sorted(verbs.items()):
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            out.append((verb, path, operation, fields(body)))
    return out


OPERATIONS = _operations()


def filled(path: str, places: dict[str, str], instead: str = "") -> Iterator[str]:
    """The path with rows that exist; with ``instead``, each of its parameters in turn is that."""
    names = re.findall(r"([a-z-]+)/\{\w+\}", path)
    parts = re.split(r"\{\w+\}", path)
    for spoiled in range(len(names)) if instead else (-1,):
        out = parts[0]
        for n, (name, rest) in enumerate(zip(names, parts[1:], strict=True)):
            out += (instead if n == spoiled else places[name]) + rest
        yield out
