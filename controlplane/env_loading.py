"""Reads the settings of :class:`controlplane.env.Env` from the environment and checks each, and them together."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from controlplane.database_address import parse_database_url
from controlplane.env import PREFIX, Env, SettingsError, env_name
from controlplane.loopback import is_loopback
from scheduling.state.address import parse_url

IN_A_FILE = "_FILE"  # behind the name of a secret: the file that holds it
LONGEST_SECRET = 64 * 1024  # characters
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
SECOND_FACTOR = ("optional", "admins", "all")
MOST_KEY = 500  # characters of an engine's key, as a backend keeps
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = ("text", "json")


def load(environ: Mapping[str, str] | None = None) -> Env:
    """Reads and checks all settings.

    Raises:
        SettingsError: with every fault found, not only the first.
    """
    source = os.environ if environ is None else environ
    types = get_type_hints(Env)
    values: dict[str, Any] = {}
    faults: list[str] = []
    for f in fields(Env):
        name = env_name(f.name)
        raw = source.get(name, "").strip()
        if not raw and f.metadata["secret"]:
            try:
                raw = _from_file(source.get(f"{name}{IN_A_FILE}", "").strip())
            except (OSError, ValueError) as error:
                faults.append(f"{name}{IN_A_FILE}: {error}")
        if not raw:
            continue
        try:
            values[f.name] = _parse(raw, types[f.name], f.metadata["low"])
        except ValueError as error:
            shown = "(hidden)" if f.metadata["secret"] else repr(raw)
            faults.append(f"{name}={shown}: {error}")
    env = Env(**values)
    faults += _check(env, frozenset(values))
    if faults:
        raise SettingsError("Settings that cannot be used (docs/reference/settings.md):\n  " + "\n  ".join(faults))
    return env


def needs_redis(env: Env) -> None:
    """For what serves and what leads; commands such as ``migrate`` need none.

    Raises:
        SettingsError: none is named.
    """
    if not env.redis_url:
        raise SettingsError(
            f"{env_name('redis_url')} is not set: web processes, workers and standbys need the Redis of their "
            "installation, such as redis://redis:6379/0. `make up` starts one for its own processes, and writes its "
            "address to $QUARTERMASTER_HOME/run/redis-url."
        )


def _from_file(path: str) -> str:
    """What a file holds; nothing where none is named. ValueError where it holds too much to be a secret."""
    if not path:
        return ""
    with open(path, encoding="utf-8") as file:
        text = file.read(LONGEST_SECRET + 1)
    if len(text) > LONGEST_SECRET:
        raise ValueError(f"{path} is longer than {LONGEST_SECRET} characters")
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text.strip()


def unknown(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that are no setting: probably a typing error, worth a line at start."""
    names = {env_name(f.name) for f in fields(Env)}
    names |= {f"{env_name(f.name)}{IN_A_FILE}" for f in fields(Env) if f.metadata["secret"]}
    return sorted(n for n in environ if n.startswith(PREFIX) and n not in names)


def _oidc_faults(env: Env) -> list[str]:
    if not env.oidc_issuer:
        return []
    faults = []
    parts = urlsplit(env.oidc_issuer)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        faults.append(f"{env_name('oidc_issuer')}={env.oidc_issuer!r}: use https:// and a host, without ? and #")
    elif parts.scheme == "http" and not is_loopback(parts.hostname):
        faults.append(f"{env_name('oidc_issuer')}={env.oidc_issuer!r}: only https://; over http anybody could sign in")
    if not env.oidc_client_id:
        faults.append(f"{env_name('oidc_issuer')}: needs {env_name('oidc_client_id')}")
    try:
        secret = env.oidc_secret
    except (OSError, ValueError) as error:
        faults.append(f"{env_name('oidc_client_secret_file')}={env.oidc_client_secret_file!r}: {error}")
    else:
        if not secret:
            faults.append(f"{env_name('oidc_issuer')}: needs {env_name('oidc_client_secret')} or a file with it")
    return faults


def _address_faults(env: Env) -> list[str]:
    """Of PostgreSQL and Redis: what would fail at each connect, with their certificates' files."""
    faults = []
    if env.database_url:
        try:
            parse_database_url(env.database_url)
        except (OSError, ValueError) as error:  # a folder that this user may not look into
            faults.append(f"{env_name('database_url')}=(hidden): {error}")
    if env.redis_url:
        try:
            tls = parse_url(env.redis_url).tls
            _ = tls.context() if tls is not None else None
        except (OSError, ValueError) as error:
            faults.append(f"{env_name('redis_url')}=(hidden): {error}")
    return faults


def _parse(raw: str, kind: type, low: float | None) -> Any:
    if kind is bool:
        if raw.lower() not in TRUE + FALSE:
            raise ValueError("use on or off")
        return raw.lower() in TRUE
    if kind in (int, float):
        if raw.startswith("tcp://"):
            raise ValueError("Kubernetes set this for a Service of that name; set enableServiceLinks: false on the pod")
        try:
            number = kind(raw)
        except ValueError:
            raise ValueError("use a whole number" if kind is int else "use a number") from None
        if number != number or (low is not None and number < low):
            raise ValueError(f"must be at least {low:g}")
        return number
    return Path(raw).expanduser() if kind is Path else raw


def _check(env: Env, given: frozenset[str]) -> list[str]:
    """Rules over more than one character of one value. ``given``: the settings that the environment names."""
    faults = [
        *_process_faults(env),
        *_address_faults(env),
        *_url_faults(env),
        *_sign_in_faults(env),
        *_delivery_faults(env),
        *_engine_faults(env),
    ]
    if "idle_token_timeout_s" in given and env.idle_token_timeout_s > env.request_timeout_s:
        faults.append(f"{env_name('idle_token_timeout_s')}: longer than {env_name('request_timeout_s')}, so never used")
    return faults


def _process_faults(env: Env) -> list[str]:
    """Where a process listens, what it logs, whom it trusts, and how long its secrets are."""
    faults = []
    if env.port > 65535:
        faults.append(f"{env_name('port')}={env.port}: a port is at most 65535")
    if env.log_level not in LOG_LEVELS:
        faults.append(f"{env_name('log_level')}={env.log_level!r}: use one of {', '.join(LOG_LEVELS)}")
    if env.log_format not in LOG_FORMATS:
        faults.append(f"{env_name('log_format')}={env.log_format!r}: use one of {', '.join(LOG_FORMATS)}")
    for name, least in (("secret_key", 32), ("metrics_token", 16), ("ext_authz_token", 16)):
        length = len(getattr(env, name))
        if 0 < length < least:
            faults.append(f"{env_name(name)}=(hidden): needs at least {least} characters, has {length}")
    if any(len(one) < 32 for one in env.fallback_keys):
        faults.append(f"{env_name('secret_key_fallbacks')}=(hidden): each needs at least 32 characters")
    key = env.engine_api_key
    if len(key) > MOST_KEY or not key.isascii() or any(letter.isspace() or not letter.isprintable() for letter in key):
        faults.append(f"{env_name('engine_api_key')}=(hidden): use at most {MOST_KEY} letters of ASCII without spaces")
    for proxy in env.proxies:
        try:
            ip_network(proxy)
        except ValueError:
            faults.append(
                f"{env_name('trusted_proxies')}={proxy!r}: use an IP address or a network such as 10.0.0.0/24"
            )
    if env.debug and not is_loopback(env.host):
        faults.append(
            f"{env_name('debug')}: only with {env_name('host')}=127.0.0.1, not {env.host}; others would see it"
        )
    if env.hsts_preload and not env.hsts_subdomains:
        faults.append(f"{env_name('hsts_preload')}: needs {env_name('hsts_subdomains')}, or browsers ignore it")
    return faults


def _url_faults(env: Env) -> list[str]:
    """URLs that are called or shown, and the secret that signs calls."""
    faults = []
    if env.webhook_secret and len(env.webhook_secret) < 16:
        faults.append(f"{env_name('webhook_secret')}=(hidden): needs at least 16 characters")
    for name in ("alert_webhook", "public_url", "pagerduty_url"):
        url = getattr(env, name)
        if url and urlsplit(url).scheme not in ("http", "https"):
            faults.append(f"{env_name(name)}={url!r}: must begin with http:// or https://")
    return faults


def _sign_in_faults(env: Env) -> list[str]:
    faults = []
    if env.second_factor not in SECOND_FACTOR:
        faults.append(f"{env_name('second_factor')}={env.second_factor!r}: use one of {', '.join(SECOND_FACTOR)}")
    faults += _oidc_faults(env)
    try:
        _ = env.saml_apps
    except (OSError, ValueError) as error:
        faults.append(f"{env_name('saml_metadata_file')}={env.saml_metadata_file!r}: {error}")
    return faults


def _delivery_faults(env: Env) -> list[str]:
    """Mail, files and webhooks."""
    faults = []
    try:
        _ = env.mail_server
    except ValueError:
        faults.append(f"{env_name('email_url')}=(hidden): use smtp://, smtp+tls:// or smtps:// and a host")
    try:
        _ = env.file_storage_settings
    except ValueError:
        faults.append(f"{env_name('file_storage_options')}=(hidden): use a JSON object, or leave it empty")
    try:
        address = urlsplit(env.webhook_proxy)
        usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        usable = False
    if env.webhook_proxy and not usable:
        faults.append(f"{env_name('webhook_proxy')}=(hidden): use http://host:port or https://host:port")
    for name in ("alert_webhook", "webhook_hosts"):
        if getattr(env, name) and not env.webhook_secret:
            faults.append(f"{env_name(name)}: needs {env_name('webhook_secret')}, which signs what is sent")
    return faults


def _engine_faults(env: Env) -> list[str]:
    """Engines, those that a scaler starts, and who may ask where they are."""
    faults = []
    if env.ext_authz_s > 0 and not env.ext_authz_token:
        faults.append(
            f"{env_name('ext_authz_s')}: needs {env_name('ext_authz_token')}, or any client asks where replicas are"
        )
    if env.replica_command and "{port}" not in env.replica_command:
        faults.append(f"{env_name('replica_command')}: has no {{port}}, so no two replicas could run")
    try:
        _ = [word.format(port=1, index=0, name="a") for word in shlex.split(env.replica_command)]
    except (ValueError, LookupError, AttributeError) as error:
        faults.append(
            f"{env_name('replica_command')}: cannot be filled in ({error}). It has {{port}}, {{index}} and {{name}}; "
            "write braces of JSON twice, and close each quote"
        )
    for url in env.engines:
        if env.engine != "vllm" and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            faults.append(f"ENGINE={url!r}: use http://host:port of a running server, or vllm")
    return faults
