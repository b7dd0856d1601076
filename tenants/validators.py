"""Rules for single values. Each message says what was wrong and what to write instead."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator

from scheduling.core.admission.entitlement import read_coefficients
from scheduling.core.ledger.money import MAX_ALERTS

MOST_SLOTS = 100_000  # of one replica
AT_LEAST_ONE = [MinValueValidator(1)]
LARGEST_FIGURE = 1e12  # of tokens, tokens/s, seconds and weights

slug_validator = RegexValidator(
    r"\A[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z",
    "Use up to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends, such as 'llama-8b'.",
)

model_name_validator = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}\Z",
    "Use letters, digits and . _ : / @ + -, such as 'meta-llama/Llama-3.1-8B-Instruct'.",
)


EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)  # room for sums on both sides
TIME_BOUNDS = f"Use a time from {EARLIEST:%Y} up to {LATEST:%Y}."
NUL = "Leave out the NUL character."  # PostgreSQL stores none
# Embeddings, overrides and isolates of Unicode: one that is not closed turns round what a page writes after it. Marks
# of one letter (U+200E, U+200F) may stay: Hebrew and Arabic need no more in a short text.
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
TURNS = "Leave out the characters that change the direction of text (U+202A to U+202E, U+2066 to U+2069)."


def turns_text(text: str) -> bool:
    """Whether it has a character by which what follows it on a page may read backwards."""
    return _TURNS.search(text) is not None


def finite(value: float) -> None:
    """A number one can calculate with: YAML and JSON also know ``.inf`` and ``NaN``, and two near the end of what a
    float can be add up to infinity."""
    if not math.isfinite(value):
        raise ValidationError("Use an ordinary number, not infinity or NaN.")
    if abs(value) > LARGEST_FIGURE:
        raise ValidationError(f"Use a number of at most {LARGEST_FIGURE:,.0f}.")


def validate_base_url(value: str) -> None:
    """An engine's address: scheme, host and port, nothing else (paths are ours to choose)."""
    _validate_http_url(value, allow_path=False)


def validate_http_url(value: str) -> None:
    """An address that may have a path, such as a GPU exporter's ``/metrics``."""
    _validate_http_url(value, allow_path=True)


# One machine, whichever is written; who dials 0.0.0.0, which engines print as their address, dials this one.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104
_PORTS = {"http": 80, "https": 443}


def place_of(url: str) -> tuple[str, int]:
    """Host and port, however the address of an engine is spelt: what is asked there is the same server. Names that only
    a resolver could tell to be the same are not."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    with suppress(ValueError):
        address = ip_address(host)
        host = str(getattr(address, "ipv4_mapped", None) or address)
    return "localhost" if host in LOOPBACK else host, parts.port or _PORTS.get(parts.scheme, 0)


def check_webhook(url: str) -> None:
    """Whether something may be sent there: the one rule for alerts and scaling orders, when an address is saved and
    when it is sent to. An admin of the console cannot make the server call what whoever runs it did not list.

    Raises:
        ValidationError: it is no address, or its host is not on the list of those who run this installation.
    """
    own = settings.QUARTERMASTER_ALERT_WEBHOOK
    if own and url == own:
        return
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
    except ValueError as error:
        raise ValidationError(f"This is not a URL: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or "\\" in url:
        raise ValidationError("Use http:// or https:// and a host, without a user name.")
    allowed = {host.strip().lower() for host in settings.QUARTERMASTER_WEBHOOK_HOSTS.split(",") if host.strip()}
    if own:
        allowed.add(urlsplit(own).netloc.rpartition("@")[2].lower())
    if parts.netloc.lower() not in allowed and parts.hostname not in allowed:
        raise ValidationError(
            f"{parts.netloc} is not among QUARTERMASTER_WEBHOOK_HOSTS, the hosts that may be sent to. "
            "Whoever runs this installation can add it."
        )


def _validate_http_url(value: str, *, allow_path: bool) -> None:
    example = "http://10.0.0.7:9400/metrics" if allow_path else "http://10.0.0.7:8000"
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValidationError(f"{value!r} is not a URL: {error}. Write it like {example}.") from error
    if parts.scheme not in ("http", "https"):
        raise ValidationError(f"{value!r} must begin with http:// or https://, like {example}.")
    if not parts.hostname or any(character.isspace() or not character.isprintable() for character in value):
        raise ValidationError(f"{value!r} names no host. Write it like {example}.")
    if parts.username is not None or parts.password is not None:
        raise ValidationError("Leave user name and password out of the URL; use the API key field.")
    if port == 0:
        raise ValidationError(f"{value!r} has port 0. Write it like {example}.")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise ValidationError(f"{value!r} must not have a query or fragment. Write it like {example}.")
    if not allow_path and parts.path:
        raise ValidationError(f"{value!r} must not have a path, not even a slash. Write it like {example}.")


def validate_aliases(value: object) -> None:
    """Other names under which clients may ask for a pool's model."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValidationError('Write a list of model names, such as ["llama", "default"].')
    for name in value:
        model_name_validator(name)
    if len(set(value)) != len(value):
        raise ValidationError("The same alias is listed twice; list each once.")


MAX_ALIASES = 100  # of a project; each is a line of /v1/models
FALLBACK_CASES = ("unavailable", "no_room", "over_limit", "too_long")


def validate_names(value: object) -> None:
    """A list of names, each once."""
    if not isinstance(value, list) or not all(isinstance(name, str) and 0 < len(name) <= 63 for name in value):
        raise ValidationError('Write a list of names, such as ["acme-chat", "acme-code"].')
    if len(value) > MAX_ALIASES or len(set(value)) != len(value):
        raise ValidationError(f"List each name once, at most {MAX_ALIASES}.")


def validate_model_aliases(value: object) -> None:
    """A project's aliases: names that clients use, to models or entitlements."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for pair in value.items() for name in pair):
        raise ValidationError('Write aliases by name, such as {"gpt-4o": "llama-70b"}.')
    if len(value) > MAX_ALIASES:
        raise ValidationError(f"At most {MAX_ALIASES} aliases are possible.")
    for name in [name for pair in value.items() for name in pair]:
        model_name_validator(name)


def validate_fallbacks(value: object) -> None:
    """A project's fallbacks: by model, what takes its requests and when."""
    example = '{"llama-70b": {"to": "llama-8b", "when": ["unavailable"]}}'
    if not isinstance(value, Mapping) or len(value) > MAX_ALIASES:
        raise ValidationError(f"Write at most {MAX_ALIASES} fallbacks by model, such as {example}.")
    for name, rule in value.items():
        if not isinstance(rule, Mapping) or set(rule) != {"to", "when"} or not isinstance(rule["to"], str):
            raise ValidationError(f"Write the fallback of {name!r} with 'to' and 'when', such as {example}.")
        for model in (name, rule["to"]):
            model_name_validator(model)
        cases = rule["when"]
        if not isinstance(cases, list) or not cases or not all(case in FALLBACK_CASES for case in cases):
            raise ValidationError(f"'when' of {name!r} must list some of {', '.join(FALLBACK_CASES)}.")
        if rule["to"] == name:
            raise ValidationError(f"{name!r} cannot be its own fallback.")


def validate_modifiers(value: object) -> None:
    """Modifiers of a policy: names to parameters."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValidationError('Write modifiers by name with their parameters, such as {"bands": {}, "fair": {}}.')
    for name, params in value.items():
        if not isinstance(params, Mapping):
            raise ValidationError(f"Write the parameters of {name!r} by name, {{}} for the defaults, not {params!r}.")
        validate_policy_params(params)


def validate_policy_params(value: object) -> None:
    """Parameters of a policy: names to numbers or words."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValidationError('Write parameters by name, such as {"alpha": 0.5}.')
    for name, parameter in value.items():
        if isinstance(parameter, bool) or not isinstance(parameter, int | float | str):
            raise ValidationError(f"Parameter {name!r} must be a number or a word, not {parameter!r}.")
        if isinstance(parameter, float):
            finite(parameter)


def validate_coefficients(value: object) -> None:
    """Of weight, debt and burst: those of :class:`scheduling.core.types.Coefficients`."""
    try:
        read_coefficients(value)
    except ValueError as error:
        raise ValidationError(f"{error}.") from error


SIZES = ("slots", "kv_tokens")  # of one replica
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_SIZE: dict[str, tuple[type, bool]] = dict.fromkeys(SIZES, (int, False))
# What each scaling driver may be told: name -> (kind, whether it has to be given). The drivers are controlplane's.
SCALING_PARAMS: dict[str, dict[str, tuple[type, bool]]] = {
    "": {},
    "external": _SIZE,
    "local": _SIZE,
    "kubernetes": {
        "deployment": (str, False),  # or
        "leader_worker_set": (str, False),
        "namespace": (str, False),  # default: that of our own pod
        "port": (int, False),  # of the engine in its pod, 8000
        **_SIZE,
    },
    "webhook": {"url": (str, True), **_SIZE},
}


def validate_scaling_params(driver: str, value: object, *, to_zero: bool = False) -> None:
    """Parameters of a scaling driver, by what that driver takes. ``to_zero``: of a pool that may have no replica, which
    has none to go by."""
    allowed = SCALING_PARAMS[driver]
    given = value if isinstance(value, Mapping) else {}
    faults = [f"{name!r} is missing" for name, (_, needed) in allowed.items() if needed and not given.get(name)]
    if to_zero and driver:
        sizes = [name for name in SIZES if not given.get(name)]
        faults += [f"{name!r} is missing: with min replicas 0, it says what a replica has" for name in sizes]
    for name, parameter in given.items():
        if name not in allowed:
            faults.append(f"there is no {name!r}; there are: {', '.join(allowed) or 'none'}")
        elif allowed[name][0] is int and not (type(parameter) is int and parameter > 0):
            faults.append(f"{name!r} must be a whole number of 1 or more, not {parameter!r}")
        elif allowed[name][0] is str and not isinstance(parameter, str):
            faults.append(f"{name!r} must be a text, not {parameter!r}")
    if driver == "kubernetes":  # they stand in the paths of calls to the API server, with our own rights there
        faults += [
            f"{name!r} cannot be {given[name]!r}: no object of Kubernetes is called so"
            for name in ("deployment", "leader_worker_set", "namespace")
            if isinstance(given.get(name), str) and given[name] and not _OBJECT_NAME.fullmatch(given[name])
        ]
    if driver == "kubernetes" and bool(given.get("deployment")) == bool(given.get("leader_worker_set")):
        faults.append("give 'deployment' or 'leader_worker_set', one of them")
    if not faults and driver == "webhook":
        try:
            validate_http_url(given["url"])
        except ValidationError as error:
            faults.append(f"'url': {error.messages[0]}")
    if faults:
        raise ValidationError({"scaling_params": f"Driver {driver or 'none'}: {'; '.join(faults)}."})


def validate_shares(value: object) -> None:
    """Thresholds of a budget: whole percents, each once."""
    shares = value if isinstance(value, list) else [None]
    if len(shares) > MAX_ALERTS or len(set(map(repr, shares))) != len(shares):
        raise ValidationError(f"Give at most {MAX_ALERTS} shares, each once.")
    if not all(type(share) is int and 1 <= share <= 1000 for share in shares):
        raise ValidationError("Give a list of whole numbers from 1 to 1000 [%], such as [50, 80].")


# Scripts that stand together in names, as in Unicode's UTS 39 ("highly restrictive"); all others stand alone.
_TOGETHER = (
    frozenset({"LATIN", "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "CJK", "IDEOGRAPHIC", "HANGUL"}),
    frozenset({"LATIN", "CJK", "IDEOGRAPHIC", "BOPOMOFO"}),
)


def validate_one_script(name: str) -> None:
    """A name in which letters of two scripts stand side by side may be read as another's: a Cyrillic a in "admin"."""
    scripts = {unicodedata.name(letter, "UNKNOWN").split()[0].split("-")[0] for letter in name if letter.isalpha()}
    if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
        found = " and ".join(script.capitalize() for script in sorted(scripts))
        raise ValidationError(f"Use letters of one script: this name mixes {found}, and may be read as another name.")


def json_pattern(validator: RegexValidator, *, blank: bool = False) -> str:
    """What a validator of texts allows, as a pattern of JSON Schema: Python's ends of a text are those of ECMA 262."""
    pattern = re.compile(validator.regex).pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return f"^$|{pattern}" if blank else pattern


_MODEL: dict[str, Any] = {"type": "string", "pattern": json_pattern(model_name_validator)}
_BY_NAME: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

# What each rule above allows, as JSON Schema in the part that Kubernetes knows: its API server cannot ask Python. It
# refuses nothing that the rule takes; what it cannot say, such as the number of a port, the rule alone refuses
# (tests/unit/kubernetes/test_schema_rules.py compares them).
SCHEMAS: dict[Callable[[Any], None], dict[str, Any]] = {
    validate_base_url: {"pattern": r"^[hH][tT][tT][pP][sS]?://[^/?#@\s]+$"},
    validate_http_url: {"pattern": r"^[hH][tT][tT][pP][sS]?://[^/?#@\s]+(/[^?#\s]*)?$"},
    validate_aliases: {"type": "array", "items": _MODEL, "x-kubernetes-list-type": "set"},
    validate_names: {
        "type": "array", "maxItems": MAX_ALIASES, "x-kubernetes-list-type": "set",
        "items": {"type": "string", "minLength": 1, "maxLength": 63},
    },
    validate_model_aliases: {"type": "object", "maxProperties": MAX_ALIASES, "additionalProperties": _MODEL},
    validate_fallbacks: {
        "type": "object",
        "maxProperties": MAX_ALIASES,
        "additionalProperties": {
            "type": "object",
            "required": ["to", "when"],
            "properties": {
                "to": _MODEL,
                "when": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": list(FALLBACK_CASES)}},
            },
        },
    },
    validate_modifiers: {"type": "object", "additionalProperties": _BY_NAME},
}  # fmt: skip
