"""Nothing that anybody can send to the management API is answered with a 5xx.

Routes, parameters and fields come from the OpenAPI schema, so a new one is tried without a line here; a new *body*
needs a row in ``BODIES``, or the first test fails. Each request runs in a savepoint that is taken back.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from django.contrib import admin

from tenants.api import inputs
from tests.support import worlds
from tests.support.api_inputs import OPERATIONS, Tried, filled, places, tried, world
from tests.unit.tenants.test_tenants_access_matrix import BACKEND, ENTITLEMENT, POOL, SLO, TENANT, TIER

__all__ = ["places", "tried", "world"]  # fixtures
pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]

SEED = 11
T = TypeVar("T")
VERBS = ("get", "post", "put", "patch", "delete")
# A part of the values in each run, all of them in `make test-slow`.
SHARE = pytest.mark.parametrize("share", [0.04, pytest.param(1.0, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
DEEP = 5_000  # levels; Python's own parser gives up at a thousand
DEEPER = 100_000

# Bodies that are right, by operation; each field is then made wrong in turn.
BODIES: dict[str, dict[str, Any]] = {
    "second_factor_codes": {"code": "123456"},
    "second_factor_disable": {"code": "123456"},
    "second_factor_enable": {"code": "123456"},
    "second_factor_offer": {"code": "123456"},
    "second_factor_passkey_add": {"name": "laptop", "credential": {"id": "x"}},
    "second_factor_passkey_offer": {"code": "123456"},
    "second_factor_passkey_remove": {"code": "123456"},
    "second_factor_passkey_rename": {"name": "laptop"},
    "alert_rules_create": {"name": "deep queue", "kind": "queue_age", "threshold": 5, "pool": "llama"},
    "alert_rules_partial_update": {"name": "other"},
    "alert_acknowledge": {"note": "looking"},
    "alert_assign": {"user": "olga"},
    "alert_rule_rehearsal": {"name": "deep queue", "kind": "queue_age", "threshold": 5, "pool": "llama"},
    "alert_silence": {"minutes": 5},
    "adapters_create": {"slug": "law", "pool": "llama", "model": "llama-law"},
    "adapters_partial_update": {"source": "/adapters/law"},
    "backends_create": BACKEND,
    "backends_partial_update": {"description": "changed"},
    "engine_check": {"url": "http://127.0.0.1:1"},
    "entitlements_create": ENTITLEMENT,
    "entitlements_partial_update": {"description": "changed"},
    "estimates_reset_create": {"pool": "llama"},
    "group_rules_create": {"group": "staff", "tenant": "acme"},
    "group_rules_partial_update": {"group": "others"},
    "invitations_create": {"name": "Ada", "role": "operator"},
    "people_create": {"username": "ci"},
    "people_token": {"name": "ci"},
    "keys_create": {"name": "ci", "entitlement": "acme-llama"},
    "keys_partial_update": {"name": "changed"},
    "keys_rotate": {"overlap_s": 60},
    "lab_recordings_create": {"name": "an hour", "pool": "llama", "minutes": 60},
    "lab_runs_create": {"name": "what if", "recording": "kept", "pool": "llama", "policies": ["now", "fifo"]},
    "memberships_create": {"user": "nora", "tenant": "acme", "role": "member"},
    "memberships_partial_update": {"role": "member"},
    "notification_channels_create": {"name": "pager", "kind": "pagerduty", "target": "0" * 32},
    "notification_channels_partial_update": {"for_all": True},
    "pools_create": POOL,
    "pools_partial_update": {"description": "changed"},
    "pools_policy": {"policy": "fifo"},
    "pools_rollback": {"version": 1},
    "pools_trial_start": {"minutes": 5},
    "pools_trials_create": {
        "setting": {
            "policy": "fifo",
            "room": {"prefill_credit": 512},
            "objects": [{"kind": "tier", "name": "premium", "values": {"weight": 9}}],
        },
        "window": {"since": "2026-11-22T10:00:00Z", "until": "2026-11-22T11:00:00Z"},
    },
    "pools_tuning_set": {"mode": "advise"},
    "budgets_create": {"tenant": "acme", "scope": "user", "name": "ada", "hard_amount": "10"},
    "budgets_partial_update": {"hard_amount": "99"},
    "prices_create": {"pool": "llama", "valid_from": "2026-01-01T00:00:00Z"},
    "prices_partial_update": {"currency": "EUR"},
    "projects_create": {"slug": "new", "tenant": "acme", "aliases": {"gpt-4o": "llama"}},
    "projects_partial_update": {"description": "changed"},
    "quotas_create": {"tenant": "acme", "period": "day", "hard_tokens": 10},
    "quotas_partial_update": {"hard_tokens": 99},
    "saved_views_create": {"name": "slow", "query": "waited_over=8&tenant=acme"},
    "saved_views_partial_update": {"name": "slower"},
    "setup": {"tenant": TENANT},
    "slos_create": SLO,
    "tenants_revoke_user": {"user": "ada"},
    "slos_partial_update": {"description": "changed"},
    "tenants_create": TENANT,
    "tenants_partial_update": {"description": "changed"},
    "tenants_pause": {"reason": "a runaway job"},
    "tiers_create": TIER,
    "tiers_partial_update": {"description": "changed"},
    "tokens_create": {"name": "ci"},
}
HIDDEN = ("limit", "offset", "cursor", "search", "state", "page", "format", "dry_run")  # some views read them unlisted


def _cursor(text: str) -> str:
    return quote(base64.b64encode(text.encode()).decode())


# As they stand in a URL, percent signs and all.
TEXTS = (
    "", "%00", "a%00b", "%ED%A0%80", "%FF%FE", "%F4%8F%BF%BF", "%25", "%2525", "_%25", "'%22%5C;--", "%0d%0aX: y",
    "%E2%80%AE", "null", "%5B%5D", "%7B%22a%22:1%7D", "x" * 5_000,
)  # fmt: skip
NUMBERS = (
    "-1", "0", "1", "-0", "1.5", "1e400", "-1e400", "NaN", "inf", "-Infinity", "1e308", "1e-400", "0x10",
    "1_000", "%D9%A3",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 30, "9" * 5_000, "2147483648",
)  # fmt: skip
MOMENTS = (
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00",
    "1969-12-31T23:59:59Z", "0000-00-00T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-21", "2026-11-21T08:00:00",
    "2026-11-21T08:00:00%2B99:99", "2026-11-21T24:00:00Z", "10000-01-01T00:00:00Z", "-2026-01-01T00:00:00Z",
    "2026-11-21T08:00:00.123456789Z", "2026-11-21T08:00:00%2B23:59", "2026-11-21T08:00:00-23:59", "1790000000", "now",
)  # fmt: skip
CURSORS = (
    "cD0x", "bz0x", "cj0x", _cursor("p=%00"), _cursor("p=\x00"), _cursor("p=0001-01-01 00:00:00+00:00"),
    _cursor("p=9999-12-31 23:59:59-14:00"), _cursor("o=99999999999999999999&p=2026-11-21"), _cursor("o=-1"),
    _cursor("p=2026-11-21 00:00:00%2B23:59"),
    _cursor("o=x"), _cursor("r=1&p=None"), _cursor("p=2026-11-21 00:00:00&o=1000000"), "%FF", "====", "a", "%00",
    _cursor("p=\ud7ff&r=2"), _cursor("p=NaN"), _cursor("p=2026-13-45 00:00:00+00:00"), _cursor("r=1&o=5"),
)  # fmt: skip
ASKED = (*TEXTS, *NUMBERS, *MOMENTS, *CURSORS)
PLACES = ("%00", "a%00b", "%ED%A0%80", "0", "-1", "9223372036854775808", "9" * 400, "x" * 400, "%2e%2e", "nope")

# Pieces of JSON, as text: some cannot be made by a serializer.
PIECES = (
    "null", "true", "0", "-1", "1.5", "1e400", "-1e400", "NaN", "Infinity", "9223372036854775808",
    "-9223372036854775809", "1" + "0" * 30, "9" * 400, "9" * 5_000, "1e308", "5e-324", '""', '" "', '"\\u0000"',
    '"a\\u0000b"', '"\\ud800"',
    '"\\udfff\\ud800"', '"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59-14:00"', '"0001-01-01T00:00:00+14:00"',
    '"2026-11-21T08:00:00"', '"NaN"', '"1e400"', '"' + "x" * 5_000 + '"', "[]", "[null]", '["\\u0000"]', "[[[]]]", "{}",
    '{"": null}', '{"\\u0000": 1}', '{"a\\ud800": 1}', '{"a": {"b": [1]}}', '{"a": 1e400}', '{"a": NaN}', '["a", "a"]',
    '{"a": "\\ud800"}', '{"a": ["\\u0000"]}', '[{"a": 1}, 2]', "[" * 30 + "]" * 30, '{"debt": "x"}', '{"debt": 1e308}',
)  # fmt: skip
WHOLE: tuple[bytes, ...] = (
    b"", b" ", b"null", b"true", b"1", b'"x"', b"[]", b"[1]", b"[[]]", b"{", b"}", b'{"a"', b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"slug": "\xed\xa0\x80"}', b"\x00", b'{"slug": "a", "slug": {"b": 1}}', b"9" * 5_000, b"NaN", b"1e400",
    b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"[" * DEEPER + b"]" * DEEPER,
    b'{"a":' * DEEPER, b'{"description": ' + b"[" * DEEP + b"]" * DEEP + b"}", b'{"a": "' + b"[" * DEEP + b'"}',
    b"{" + b",".join(b'"f%d": 1' % n for n in range(20_000)) + b"}", b"[" + b"1," * 200_000 + b"1]",
)  # fmt: skip
TYPES = (
    "text/plain", "application/xml", "multipart/form-data", "multipart/form-data; boundary=",
    "application/json; charset=x",
    "application/json; charset=utf-16", "application/json;;;", "x", "application/x-www-form-urlencoded", "\x01/\x02",
    "multipart/form-data; boundary=" + "b" * 300, "application/json; " + "a=b; " * 500,
)  # fmt: skip
ACCEPTS = (
    "",
    "x",
    "*/*; q=2",
    "text/csv",
    "application/json; indent=99999",
    "application/json; indent=x",
    "a/b," * 500,
)


LOGINS = (
    "Basic", "Basic %%%", "Basic " + base64.b64encode(b"a\x00:b").decode(), "Bearer", "Bearer \xff", "x" * 900,
    "Basic " + base64.b64encode(b"\xff:\xff").decode(), "Bearer qma-aaaaaaaaaaaa." + "s" * 500,
)  # fmt: skip


def _some(values: Sequence[T], share: float, draw: random.Random) -> list[T]:
    return list(values) if share >= 1 else draw.sample(values, max(2, round(len(values) * share)))


def test_every_body_of_the_schema_has_one_that_is_right(tried: Tried, places: dict[str, str]) -> None:
    wanted = {op["operationId"]: (verb, path) for verb, path, op, _ in OPERATIONS if "requestBody" in op}
    assert len(OPERATIONS) > 90, "the schema shows too little"
    assert set(wanted) == set(BODIES)
    for name, (verb, path) in wanted.items():
        status = tried(verb, next(filled(path, places)), json.dumps(BODIES[name]).encode())
        assert status < 300, (name, status)


@SHARE
def test_no_value_of_a_query_parameter_is_answered_with_a_5xx(
    tried: Tried, places: dict[str, str], share: float
) -> None:
    draw = random.Random(SEED)
    for verb, path, operation, _ in OPERATIONS:
        if verb != "get":
            continue
        url = next(filled(path, places))
        listed = {p["name"]: p["schema"] for p in operation.get("parameters", ()) if p["in"] == "query"}
        for name in (*listed, *(n for n in HIDDEN if n not in listed)):
            schema = listed.get(name, {})
            if name == "cursor":
                fitting: tuple[str, ...] = CURSORS
            elif schema.get("format") == "date-time":
                fitting = MOMENTS
            elif schema.get("type") in ("integer", "number") or name in ("limit", "offset"):
                fitting = NUMBERS
            else:
                fitting = TEXTS
            needed = "pool=llama&" if "live/history" in path and name != "pool" else ""
            whole = name in listed and fitting in (MOMENTS, CURSORS)
            values = fitting if whole else _some(fitting, share if name in listed else share / 2, draw)
            for value in dict.fromkeys((*values, "%00", *_some(ASKED, share / 20, draw))):
                tried("get", f"{url}?{needed}{name}={value}")
        if share == 1:
            tried("get", f"{url}?" + "&".join(f"a{n}=1" for n in range(2_000)))
            tried("get", f"{url}?limit=1&limit=x&offset=&offset=2")
    assert not tried.faults, tried.told()


def test_no_id_in_a_path_is_answered_with_a_5xx(tried: Tried, places: dict[str, str]) -> None:
    for verb, path, operation, _ in OPERATIONS:
        body = json.dumps(BODIES.get(operation["operationId"], {})).encode() if verb != "get" else None
        for value in PLACES:
            for url in filled(path, places, value):
                tried(verb, url, body)
    assert not tried.faults, tried.told()


@SHARE
def test_no_value_of_a_field_is_answered_with_a_5xx(tried: Tried, places: dict[str, str], share: float) -> None:
    draw = random.Random(SEED)
    for verb, path, operation, fields in OPERATIONS:
        if "requestBody" not in operation:
            continue
        url, right = next(filled(path, places)), BODIES[operation["operationId"]]
        names = fields if operation["operationId"] != "setup" else ("pool", "backend", "tenant", "entitlement", "key")
        assert names, operation["operationId"]
        for name in dict.fromkeys((*names, *right)):
            rest = json.dumps({k: v for k, v in right.items() if k != name})[1:-1]
            for piece in _some(PIECES, share, draw):
                text = f'{{{rest}{", " if rest else ""}"{name}": {piece}}}'
                tried(verb, url, text.encode())
    assert not tried.faults, tried.told()


@SHARE
def test_no_body_as_a_whole_is_answered_with_a_5xx(tried: Tried, places: dict[str, str], share: float) -> None:
    draw = random.Random(SEED)
    for verb, path, operation, _ in OPERATIONS:
        if verb in ("get", "delete"):
            continue
        url = next(filled(path, places))
        wrong = _some(WHOLE, max(0.1, 2 * share), draw)
        for body in wrong if "requestBody" in operation else wrong[:2]:
            tried(verb, url, body)
        right = json.dumps(BODIES.get(operation["operationId"], {})).encode()
        for kind in _some(TYPES, share, draw):
            tried(verb, url, right, content_type=kind)
        for kind in _some(ACCEPTS, share / 2, draw):
            tried(verb, url, right, HTTP_ACCEPT=kind)
    for body in WHOLE:
        tried("post", "/api/v1/slos", body)
    for kind in ACCEPTS:
        tried("get", "/api/v1/usage", HTTP_ACCEPT=kind)
        tried("get", "/api/v1/schema", HTTP_ACCEPT=kind)
    for value in LOGINS:
        tried("get", "/api/v1/me", HTTP_AUTHORIZATION=value)
    assert not tried.faults, tried.told()


def test_no_filter_of_the_back_office_is_answered_with_a_5xx(tried: Tried, world: worlds.World) -> None:
    world.users["adam"].is_staff = world.users["adam"].is_superuser = True
    world.users["adam"].save()
    draw = random.Random(SEED)
    lists = [f"/admin/{m._meta.app_label}/{m._meta.model_name}/" for m in admin.site._registry]
    assert len(lists) > 10
    for path in lists:
        assert tried("get", path) < 400, path
        for name in ("q", "p", "o", "id__exact", "pk", "all", "e", "at__gte", "at__year", "pool__id__exact", "_facets"):
            for value in ("%00", *draw.sample(ASKED, 2)):
                tried("get", f"{path}?{name}={value}")
        for value in ("%00", "9" * 400, "nope", "%ED%A0%80"):
            tried("get", f"{path}{value}/change/")
    assert not tried.faults, tried.told()


@pytest.mark.parametrize("end", ["", "\\", "]", '"', '"' + "]" * 100])
def test_the_levels_of_a_body_are_counted_in_time_that_grows_with_its_length(end: str) -> None:
    """A member's body of 2 MiB is taken. 16,000 escaped quotes without an end held the web process for 3 s."""
    text = "[]" * 100 + '"' + '\\"' * 100_000 + end
    before_s = time.process_time()
    assert inputs._shallow(text)
    assert not inputs._shallow("[" * 33 + text)
    assert time.process_time() - before_s < 2.0
