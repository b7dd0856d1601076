"""Every setting of the product: one typed table, read from the environment and checked once, at start
(:mod:`controlplane.env_loading`).

The dataclass below is the table: a field is a setting, its annotation the type, its default the default, its metadata
the documentation. ``QUARTERMASTER_<FIELD>`` is its name in the environment; an empty value means the default.
``docs/reference/settings.md`` shows the same table and a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import unquote, urlsplit

PREFIX = "QUARTERMASTER_"
DEFAULT_PORTS = {"http": 80, "https": 443}
MAIL_PORTS = {"smtp": 25, "smtp+tls": 587, "smtps": 465}


class SettingsError(Exception):
    """One or more settings cannot be used. The message has one line per fault: name, value, what it should be."""


def setting(default: Any, doc: str, *, low: float | None = None, secret: bool = False, name: str = "") -> Any:
    """A field of :class:`Env`: ``low`` is the least value allowed, ``secret`` keeps the value out of messages and of
    ``repr``."""
    return field(default=default, repr=not secret, metadata={"doc": doc, "low": low, "secret": secret, "name": name})


def _origin_of(url: str) -> str:
    """What a browser sends as ``Origin`` from there; empty: it names no single host."""
    parts = urlsplit(url)
    try:
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:
        return ""
    if not host or "*" in host:
        return ""
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, DEFAULT_PORTS.get(parts.scheme)) else f":{port}")


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where e-mail is handed in; without a host nowhere."""

    scheme: str = "smtp"
    host: str = ""
    port: int = 25
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Env:
    """The settings of one process."""

    home: Path = setting(Path(".quartermaster"), "Folder where an embedded instance keeps all its state.")  # noqa: RUF009
    host: str = setting("127.0.0.1", "Address the web server listens on.")
    port: int = setting(8000, "Port the web server listens on.", low=1)
    secret_key: str = setting(
        "",
        "Signs sessions; at least 32 characters. Empty: created once and kept in HOME/secret-key (SQLite only).",
        secret=True,
    )
    secret_key_fallbacks: str = setting(
        "",
        "Other secrets, separated by spaces, with which this installation signs, or did: what they signed and sealed "
        "is read as well (`docs/guide/maintenance.md`).",
        secret=True,
    )
    database_url: str = setting("", "`postgresql://user:password@host:port/name`. Empty: SQLite in HOME.", secret=True)
    database_pool: int = setting(10, "Maximum number of PostgreSQL connections of one process.", low=1)
    database_timeout_s: float = setting(
        4.0,
        "Longest time a web process waits for one answer of PostgreSQL [s]. Then the page is answered 503 and the "
        "statement is cancelled. Workers wait 60 s, `manage.py` without limit.",
        low=0.1,
    )
    redis_url: str = setting(
        "",
        "`redis://[:password@]host:port/0`, `rediss://...` (TLS) or `unix:///path?db=0`. Empty: `make up` "
        "starts a server of its own.",
        secret=True,
    )
    debug: bool = setting(False, "Django's debug pages. Only if HOST is a loopback address.")
    allowed_hosts: str = setting(
        "localhost,127.0.0.1,[::1]", "Host names the web server answers to, separated by commas."
    )
    trusted_origins: str = setting(
        "",
        "Origins behind a proxy that may post forms, separated by commas, e.g. `https://llm.example.org`; that of "
        "PUBLIC_URL may as well.",
    )
    https: bool = setting(False, "Clients connect by HTTPS through a proxy: secure cookies, HSTS, redirects.")
    trusted_proxies: str = setting(
        "",
        "Addresses or networks of proxies, separated by commas, e.g. `10.0.0.0/24`. Only their `X-Forwarded-For` "
        "and `X-Forwarded-Proto` are used, and they have no limit of connections. Empty: 127.0.0.1 and ::1 with "
        "HTTPS, otherwise none.",
    )
    hsts_subdomains: bool = setting(False, "With HTTPS: HSTS covers all subdomains of the name as well.")
    hsts_preload: bool = setting(
        False, "With HSTS_SUBDOMAINS: asks browser vendors to list the name as HTTPS only, which is hard to undo."
    )
    basic_auth: bool = setting(
        False,
        "Whether `/api/v1` accepts a user name with its password (HTTP Basic), besides sessions and access tokens.",
    )
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR.")
    log_format: str = setting("text", "text, or json: each line of the log of every process is one JSON object.")

    metrics_token: str = setting(
        "",
        "Token for `/metrics`, which names tenants and pools, and for the details of `/readyz` (`Authorization: "
        "Bearer <token>`); at least 16 characters. Empty: only clients on this machine get them, and none through a "
        "proxy.",
        secret=True,
    )
    metrics_tenants: int = setting(
        1000,
        "Tenants with series of their own in `/metrics`: the first of each process. The others count as `other`.",
        low=0,
    )
    metrics_entitlements: int = setting(
        500,
        "Entitlements with gauges of their own in `/metrics`, over all pools: those with most reserved. Each has up to "
        "four series. Of the others each pool has one, `_other`, with the worst figure.",
        low=0,
    )
    back_office: bool = setting(
        True, "Whether this process loads the back office. A worker without it starts sooner and needs less memory."
    )

    web_processes: int = setting(
        1, "Number of web processes that `make up` starts. They share the port; each has a gateway of its own.", low=1
    )

    max_body_bytes: int = setting(4 * 1024 * 1024, "Largest request body on `/v1` [bytes].", low=1024)
    max_header_bytes: int = setting(32 * 1024, "Largest request head on `/v1` [bytes].", low=1024)
    max_connections: int = setting(
        10_000,
        "Client connections of one web process; further ones are answered 503. Fewer if the limit of open files is "
        "lower than two per connection.",
        low=1,
    )
    max_connections_per_address: int = setting(
        4_000,
        "Client connections of one web process from one address that is not in TRUSTED_PROXIES; further ones are "
        "answered 429. 0: no such limit.",
        low=0,
    )
    max_websockets: int = setting(
        1_000, "Open WebSockets (consoles) of one web process; further ones are answered 503.", low=1
    )
    max_websockets_per_user: int = setting(
        40,
        "Open WebSockets of one user in one web process; further ones are answered 429. Each tab of the console has "
        "one.",
        low=1,
    )
    max_open_requests_per_key: int = setting(
        2_000,
        "Requests on `/v1` that one API key may have open in one web process: arriving, waiting and running ones. A "
        "tenant may have as many as connections are free (`docs/reference/limits.md`).",
        low=1,
    )
    header_timeout_s: float = setting(10.0, "Longest time a client may take to send its request head [s].", low=0.1)
    body_timeout_s: float = setting(30.0, "Longest time a client may take to send its request body [s].", low=0.1)
    send_timeout_s: float = setting(30.0, "A client that reads nothing for this time is disconnected [s].", low=0.1)
    first_token_timeout_s: float = setting(
        120.0, "Longest time from the grant of a request to its first token [s].", low=0.1
    )
    idle_token_timeout_s: float = setting(
        20.0,
        "Longest time between two tokens [s]. FIRST_TOKEN_TIMEOUT_S, if that is longer, while the replica is ready (an "
        "engine whose KV cache is full preempts answers) and in requests with tools (some engines send what a tool is "
        "called with when all of it is written).",
        low=0.1,
    )
    request_timeout_s: float = setting(600.0, "Longest time a request may take, waiting included [s].", low=1)
    drain_s: float = setting(30.0, "When a process stops, running requests may continue for this time [s].", low=0)
    leave_s: float = setting(
        5.0,
        "The part of DRAIN_S in which new requests are still accepted although `/readyz` already answers 503 [s]: "
        "as long as a load balancer needs to notice (`docs/reference/limits.md`).",
        low=0,
    )
    idempotency_keep_s: float = setting(
        86_400.0, "A key sent as `Idempotency-Key` is remembered for this time after its request completed [s].", low=1
    )
    idempotency_keys: int = setting(
        10_000, "Number of such keys remembered per tenant; the oldest are forgotten first.", low=1
    )
    idempotency_answers: bool = setting(
        False,
        "Whether answers of requests with an `Idempotency-Key` are kept for that time in Redis, encrypted, and sent "
        "again to a retry (`docs/reference/v1.md`). Off: the key only prevents a second execution, and no answer is "
        "kept anywhere.",
    )
    idempotency_bytes: int = setting(
        16 * 1024 * 1024, "Kept answers of one tenant [bytes]; the oldest are forgotten first.", low=1024
    )
    responses_kept: bool = setting(
        False,
        "Whether responses of `/v1/responses` are kept in the database, encrypted, unless a request has `store: "
        "false` (`docs/reference/v1.md`). Off: none is kept, and `previous_response_id` is refused.",
    )
    responses_keep_days: int = setting(30, "A kept response is deleted after this time [days].", low=1)
    responses_per_tenant: int = setting(10_000, "Kept responses of one tenant; the oldest are deleted first.", low=1)
    responses_bytes: int = setting(
        256 * 1024 * 1024,
        "Kept responses of one tenant, as stored [bytes]; the oldest are deleted first, and a larger one is not kept.",
        low=1024,
    )
    traces: bool = setting(
        False,
        "Whether a trace of each request is sent by OTLP/HTTP (`docs/reference/traces.md`), to the standard "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`.",
    )
    ext_authz_s: float = setting(
        0.0,
        "Above 0, Envoy's `ext_authz` may request admission under `/ext-authz/` (`docs/guide/beside.md`), and a "
        "lease whose completion is not reported ends after this time [s]. Needs EXT_AUTHZ_TOKEN.",
        low=0,
    )
    ext_authz_token: str = setting(
        "",
        "What Envoy has to send in `x-quartermaster-authz-token` under `/ext-authz/`, whose answers name replicas; at "
        "least 16 characters.",
        secret=True,
    )
    retention_days: int = setting(30, "Ledger entries older than this are deleted [days].", low=1)

    file_storage: str = setting(
        "django.core.files.storage.FileSystemStorage",
        "Class that stores files of batches (`docs/guide/batches.md`), e.g. `storages.backends.s3.S3Storage` of "
        "django-storages. Every process has to see the same files.",
    )
    file_storage_options: str = setting(
        "",
        'Options of FILE_STORAGE as a JSON object, e.g. `{"bucket_name": "batches"}`. Empty: HOME/files.',
        secret=True,
    )
    file_bytes: int = setting(100 * 1024 * 1024, "Largest file that can be uploaded to `/v1/files` [bytes].", low=1024)
    files_per_entitlement: int = setting(200, "Files of one entitlement that are kept at once.", low=1)
    tenant_file_bytes: int = setting(
        2 * 1024 * 1024 * 1024,
        "Kept files of one tenant, results included [bytes]; above it, no new file is accepted.",
        low=1024,
    )
    file_keep_days: int = setting(30, "A file is deleted after this time [days].", low=1)
    batch_lines: int = setting(100_000, "Lines of one batch.", low=1)
    batches_per_entitlement: int = setting(10, "Batches of one entitlement that are open at once.", low=1)
    batch_in_flight: int = setting(
        256, "Lines of one entitlement's batches that run at once, however much capacity is idle.", low=1
    )
    task_nice: int = setting(
        10,
        "How far the worker's task processes (batches, studies, lab runs) give way to everything else on their "
        "machine, as `nice` counts it: 0 not at all, 19 most.",
        low=0,
    )
    batch_slowdown: int = setting(
        5,
        "While interactive requests run in a pool, lines of batches make steps longer by at most this, averaged "
        "over its engines [%].",
        low=0,
    )

    kv_overcommit: float = setting(
        16.0,
        "Times its KV cache that a replica may be reserved at most, where requests use less than they reserve (prompt "
        "and output bound). 1: every reservation is kept in full.",
        low=1,
    )

    prefill_preemption: bool = setting(
        True,
        "Whether the prefill of a long prompt may be interrupted for an interactive request that "
        "would be late otherwise, on engines that say that they cache prefixes.",
    )

    alert_webhook: str = setting(
        "", "`http(s)://` address that alerts are sent to. Empty: they are only shown in the console."
    )
    webhook_hosts: str = setting(
        "",
        "Hosts that alert rules and the scaling driver `webhook` may send to, besides the host of ALERT_WEBHOOK: "
        "`name` or `name:port`, separated by commas.",
    )
    webhook_secret: str = setting(
        "", "Signs what is sent to webhooks (`docs/guide/scaling.md`); at least 16 characters.", secret=True
    )
    webhook_proxy: str = setting(
        "",
        "Proxy through which webhooks, Slack and PagerDuty are reached: `http(s)://[user:password@]host:port`. It "
        "looks up their hosts. Empty: they are reached directly.",
        secret=True,
    )
    webhook_proxy_except: str = setting(
        "", "Hosts that are reached without WEBHOOK_PROXY, separated by commas; `.corp.example` means all below it."
    )
    public_url: str = setting(
        "",
        "The console's address for users, e.g. `https://llm.example.org`; links in alerts and invitations begin with "
        "it. Empty: alerts contain no link, and invitations the address that their maker used.",
    )
    token_days: int = setting(
        0,
        "Longest life of a new access token to the management API [days]; also that of a token created without an "
        "end. 0: no limit.",
        low=0,
    )
    second_factor: str = setting(
        "optional",
        "Who needs a second factor to log in with a password: `optional` (no user), `admins` or `all`. Users of the "
        "identity provider use the provider's (`docs/guide/people.md`).",
    )
    oidc_issuer: str = setting(
        "",
        "Identity provider that users sign in with (OIDC), e.g. `https://login.example.org/realms/staff`; its "
        "`/.well-known/openid-configuration` is read. Empty: local accounts only (`docs/guide/people.md`).",
    )
    oidc_client_id: str = setting("", "Client id of this installation at the OIDC provider.")
    oidc_client_secret: str = setting("", "Client secret of this installation at the OIDC provider.", secret=True)
    oidc_client_secret_file: str = setting("", "File that contains the client secret, instead of OIDC_CLIENT_SECRET.")
    oidc_name: str = setting("your organisation", "Name of the provider on the login page: `Sign in with <name>`.")
    oidc_scopes: str = setting(
        "openid profile email offline_access",
        "Scopes that are requested, separated by spaces. Without a refresh token (`offline_access` at most "
        "providers), users are signed out when their access token expires.",
    )
    oidc_groups_claim: str = setting(
        "groups", "Claim that lists a user's groups; dots name members of objects, e.g. `realm_access.roles`."
    )
    oidc_recheck_s: float = setting(
        30.0, "How often the provider is asked whether a user still exists, and in which groups [s].", low=1
    )
    oidc_end_keys: bool = setting(
        False,
        "Whether API keys that a user created, or that are attributed to the user's name or e-mail address in a tenant "
        "in which the user had a role, are revoked when the provider removes the user.",
    )
    saml_metadata_file: str = setting(
        "",
        "File with the metadata of an identity provider that users sign in with by SAML 2.0. Needs `make extras`. "
        "Empty: none (`docs/guide/people.md`).",
    )
    saml_name: str = setting("your organisation", "Name of the provider on the login page: `Sign in with <name>`.")
    saml_groups_attribute: str = setting("groups", "Attribute that lists a user's groups.")
    saml_hours: float = setting(
        72.0,
        "How long a sign-in by SAML is valid [hours]. A user who does not sign in again by then is treated as "
        "removed by the provider, because SAML has no way to ask.",
        low=1,
    )
    email_url: str = setting(
        "",
        "Mail server for alerts: `smtp://user:password@host:port`, `smtp+tls://...` (STARTTLS) or `smtps://...`. "
        "Empty: no e-mail is sent.",
        secret=True,
    )
    email_from: str = setting("", "Sender of e-mails. Empty: `quartermaster@` and the mail server's host.")
    pagerduty_url: str = setting(
        "https://events.pagerduty.com/v2/enqueue",
        "Address that events for PagerDuty are sent to; in the EU `https://events.eu.pagerduty.com/v2/enqueue`.",
    )
    replica_command: str = setting(
        "",
        "Command that starts one more engine for the scaling driver `local`, with `{port}`, `{index}` and `{name}`, "
        "e.g. `env CUDA_VISIBLE_DEVICES={index} vllm serve MODEL --port {port}`. Other braces, as of JSON, are "
        "written twice (`{{`, `}}`). Empty: a simulated engine like the first.",
    )

    engine: str = setting(
        "",
        "Engines for `make up`. Empty: simulated ones. One or more `http://host:port`, separated by spaces or "
        "commas: servers that already run. `vllm`: a real vLLM on the CPU with a tiny model.",
        name="ENGINE",
    )
    engine_kind: str = setting(
        "",
        "Kind of the servers named in ENGINE (`docs/reference/engines.md`), such as `sglang`. Empty: as configured "
        "for the pool, and `vllm` for a new one. Tenants share the prefix cache of kinds without `cache_salt`.",
    )
    engine_api_key: str = setting(
        "",
        "API key that the servers named in ENGINE want (vLLM's `--api-key`); it is stored with their backends. Empty: "
        "none, or the one that a backend was given in the back office.",
        secret=True,
    )
    demo_load: bool = setting(
        True, "Whether `make up` sends about one request per second as its demo tenants.", name="DEMO_LOAD"
    )
    engine_slots: int = setting(
        256, "Sequences that each server named in ENGINE runs at once (vLLM's `--max-num-seqs`).", low=1
    )
    sim_replicas: int = setting(2, "Number of simulated engines that `make up` starts.", low=1)
    sim_preset: str = setting(
        "llama-3-8b-a100", "Hardware and model that they simulate (`scheduling/core/engine/presets`)."
    )
    sim_prefix_caching: bool = setting(
        False,
        "Whether they keep the prompts that they have computed, as vLLM does unless it is told otherwise. Off, each "
        "prompt of a load costs what it is long, however alike they are.",
    )
    sim_slots: int = setting(0, "Sequences that each simulated engine runs at once; 0 uses the preset's.", low=0)

    @property
    def embedded(self) -> bool:
        """State lives in HOME: no database of one's own was named."""
        return not self.database_url

    @property
    def hosts(self) -> list[str]:
        return [h.strip() for h in self.allowed_hosts.split(",") if h.strip()]

    @property
    def mail_server(self) -> MailServer:
        """Raises ValueError."""
        if not self.email_url:
            return MailServer()
        parts = urlsplit(self.email_url)
        if parts.scheme not in MAIL_PORTS or not parts.hostname:
            raise ValueError("no mail server's address")
        port = parts.port or MAIL_PORTS[parts.scheme]
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return MailServer(parts.scheme, parts.hostname, port, user, password)

    @property
    def origins(self) -> list[str]:
        """Those that may post forms: the ones that are named, and that of the console's own address."""
        named = [o.strip() for o in self.trusted_origins.split(",") if o.strip()]
        own = _origin_of(self.public_url)
        without_tls = self.https and own.startswith("http://")  # anybody on the way can make such a page
        return named + ([own] if own and not without_tls else [])

    @property
    def proxies(self) -> list[str]:
        """Whose word on where a request came from is taken."""
        named = [p.strip() for p in self.trusted_proxies.split(",") if p.strip()]
        return named or (["127.0.0.1", "::1"] if self.https else [])

    @property
    def fallback_keys(self) -> list[str]:
        """Secret keys whose work is read, and with which nothing is signed."""
        return self.secret_key_fallbacks.split()

    @property
    def file_storage_settings(self) -> dict[str, Any]:
        """Options of the storage of files; ValueError where they are no JSON object."""
        options = json.loads(self.file_storage_options or "{}")
        if not isinstance(options, dict):
            raise ValueError("not an object")
        return options

    @property
    def oidc_secret(self) -> str:
        """Raises OSError or ValueError where its file cannot be read."""
        if not self.oidc_client_secret_file:
            return self.oidc_client_secret
        with open(self.oidc_client_secret_file, encoding="utf-8") as file:
            return file.read(4096).strip()

    @property
    def saml_apps(self) -> list[dict[str, Any]]:
        """What django-allauth is told. Raises OSError or ValueError where the file cannot be read, or used."""
        if not self.saml_metadata_file:
            return []
        from controlplane.signin.saml import apps_for, there

        if not there():
            raise ValueError("signing in by SAML needs an optional part; install it with `make extras`")
        with open(self.saml_metadata_file, encoding="utf-8") as file:
            return apps_for(file.read(1024 * 1024), self.saml_name)

    @property
    def engines(self) -> list[str]:
        return self.engine.replace(",", " ").split()


def env_name(field_name: str) -> str:
    """The environment variable behind a field of :class:`Env`."""
    for f in fields(Env):
        if f.name == field_name:
            return f.metadata["name"] or PREFIX + field_name.upper()
    raise KeyError(field_name)


def table() -> list[tuple[str, str, str, str]]:
    """Rows of ``docs/reference/settings.md``: name, type, default, meaning."""
    types = get_type_hints(Env)
    rows = []
    for f in fields(Env):
        assert f.default is not MISSING
        default = {True: "on", False: "off"}[f.default] if isinstance(f.default, bool) else str(f.default)
        kind = {bool: "on/off", int: "whole number", float: "number", str: "text", Path: "path"}[types[f.name]]
        rows.append((env_name(f.name), kind, default, f.metadata["doc"]))
    return rows
