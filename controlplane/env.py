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
MAIL_PORTS = {"smtp": 25, "smtp+tls": 587, "smtps": 465}


class SettingsError(Exception):
    """One or more settings cannot be used. The message has one line per fault: name, value, what it should be."""


def setting(default: Any, doc: str, *, low: float | None = None, secret: bool = False, name: str = "") -> Any:
    """A field of :class:`Env`: ``low`` is the least value allowed, ``secret`` keeps the value out of messages and of
    ``repr``."""
    return field(default=default, repr=not secret, metadata={"doc": doc, "low": low, "secret": secret, "name": name})


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

    home: Path = setting(Path(".quartermaster"), "Where an embedded instance keeps all its state.")  # noqa: RUF009
    host: str = setting("127.0.0.1", "Address the web server listens on.")
    port: int = setting(8000, "Port the web server listens on.", low=1)
    secret_key: str = setting(
        "",
        "Signs sessions; at least 32 characters. Empty: made once and kept in HOME/secret-key (SQLite only).",
        secret=True,
    )
    database_url: str = setting("", "`postgresql://user:password@host:port/name`. Empty: SQLite in HOME.", secret=True)
    database_pool: int = setting(10, "PostgreSQL connections one process may hold.", low=1)
    database_timeout_s: float = setting(
        4.0,
        "A web process waits so long for one answer of PostgreSQL [s]; then the page is answered 503 and the statement "
        "cancelled. Workers wait 60 s, `manage.py` without end.",
        low=0.1,
    )
    redis_url: str = setting(
        "",
        "`redis://[:password@]host:port/0`, `rediss://...` (TLS) or `unix:///path?db=0`. Empty: `make up` "
        "starts a server of its own.",
        secret=True,
    )
    debug: bool = setting(False, "Django's debug pages. Only while HOST is a loopback address.")
    allowed_hosts: str = setting("localhost,127.0.0.1,[::1]", "Host names the web server answers to, with commas.")
    trusted_origins: str = setting(
        "", "Origins behind a proxy that may post forms, with commas, e.g. `https://llm.example.org`."
    )
    https: bool = setting(False, "Clients come by HTTPS through a proxy: secure cookies, HSTS, redirects.")
    trusted_proxies: str = setting(
        "",
        "Addresses or networks of proxies, with commas, e.g. `10.0.0.0/24`: their `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are believed, nobody else's, and they have no limit of connections. Empty: 127.0.0.1 and "
        "::1 with HTTPS, otherwise none.",
    )
    hsts_subdomains: bool = setting(False, "With HTTPS: HSTS covers all subdomains of the name as well.")
    hsts_preload: bool = setting(
        False, "With HSTS_SUBDOMAINS: asks browsers' makers to list the name as HTTPS only, which is hard to undo."
    )
    basic_auth: bool = setting(
        False, "Whether `/api/v1` takes a name with its password (HTTP Basic), beside sessions and access tokens."
    )
    log_level: str = setting("INFO", "DEBUG, INFO, WARNING or ERROR.")

    metrics_token: str = setting(
        "",
        "`/metrics`, which names tenants and pools, and the details of `/readyz` are for `Authorization: Bearer "
        "<this>`, at least 16 characters. Empty: for this machine, and nobody who comes through a proxy.",
        secret=True,
    )
    back_office: bool = setting(
        True, "Whether this process loads the back office; a worker without it starts sooner and is smaller."
    )

    web_processes: int = setting(
        1, "Web processes that `make up` starts; they share the port, each with a gateway of its own.", low=1
    )

    max_body_bytes: int = setting(4 * 1024 * 1024, "Largest request body on `/v1` [bytes].", low=1024)
    max_header_bytes: int = setting(32 * 1024, "Largest request head on `/v1` [bytes].", low=1024)
    max_connections: int = setting(
        10_000,
        "Connections of clients one web process holds; further ones are answered 503. Fewer where the limit of open "
        "files is lower than two per connection.",
        low=1,
    )
    max_connections_per_address: int = setting(
        4_000,
        "Of these, by one address that is not in TRUSTED_PROXIES; further ones are answered 429. 0: no such limit.",
        low=0,
    )
    max_websockets: int = setting(1_000, "Of these, open consoles (WebSockets); further ones are answered 503.", low=1)
    max_websockets_per_user: int = setting(
        40, "Of these, of one user; further ones are answered 429. Each tab of the console has one.", low=1
    )
    max_open_requests_per_key: int = setting(
        2_000,
        "Requests on `/v1` one API key may have open in one web process: still arriving, waiting and running ones. A "
        "tenant may have as many as connections are still free (`docs/reference/limits.md`).",
        low=1,
    )
    header_timeout_s: float = setting(10.0, "A client has this long to send its request head [s].", low=0.1)
    body_timeout_s: float = setting(30.0, "... and this long for the body [s].", low=0.1)
    send_timeout_s: float = setting(30.0, "A client that reads nothing for this long is disconnected [s].", low=0.1)
    first_token_timeout_s: float = setting(120.0, "A granted request waits this long for its first token [s].", low=0.1)
    idle_token_timeout_s: float = setting(20.0, "... and this long between tokens [s].", low=0.1)
    request_timeout_s: float = setting(600.0, "Longest life of a request, waiting included [s].", low=1)
    drain_s: float = setting(30.0, "At a stop, running requests may go on for this long [s].", low=0)
    leave_s: float = setting(
        5.0,
        "Of these, how long new requests are still taken while `/readyz` says 503 already [s]: as long as a load "
        "balancer needs to notice (`docs/reference/limits.md`).",
        low=0,
    )
    idempotency_keep_s: float = setting(
        86_400.0, "A key sent as `Idempotency-Key` is remembered for so long after its request completed [s].", low=1
    )
    idempotency_keys: int = setting(10_000, "Of these keys, per tenant; the oldest are forgotten first.", low=1)
    idempotency_answers: bool = setting(
        False,
        "Whether answers of requests with an `Idempotency-Key` are kept in Redis for that time, encrypted, and given "
        "again (`docs/reference/v1.md`). Off: the key only prevents a second execution, and no answer is kept "
        "anywhere.",
    )
    idempotency_bytes: int = setting(
        16 * 1024 * 1024, "Kept answers of one tenant [bytes]; the oldest are forgotten first.", low=1024
    )
    responses_kept: bool = setting(
        False,
        "Whether responses of `/v1/responses` are kept in the database, encrypted, unless a request says `store: false`"
        " (`docs/reference/v1.md`). Off: none is kept, and `previous_response_id` is refused.",
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
        "Whether a trace of each request is sent by OTLP/HTTP (`docs/reference/traces.md`), to where the usual "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` says.",
    )
    ext_authz_s: float = setting(
        0.0,
        "Above 0, Envoy's `ext_authz` may ask for admission under `/ext-authz/` (`docs/guide/beside.md`), and a lease "
        "whose completion nobody tells ends after so long [s].",
        low=0,
    )
    retention_days: int = setting(30, "Ledger entries older than this are deleted [days].", low=1)

    file_storage: str = setting(
        "django.core.files.storage.FileSystemStorage",
        "Class that keeps files of batches (`docs/guide/batches.md`), e.g. `storages.backends.s3.S3Storage` of "
        "django-storages. Every process has to see the same files.",
    )
    file_storage_options: str = setting(
        "", 'Its options as a JSON object, e.g. `{"bucket_name": "batches"}`. Empty: HOME/files.', secret=True
    )
    file_bytes: int = setting(100 * 1024 * 1024, "Largest file that can be brought to `/v1/files` [bytes].", low=1024)
    files_per_entitlement: int = setting(200, "Files of one entitlement that are kept at once.", low=1)
    tenant_file_bytes: int = setting(
        2 * 1024 * 1024 * 1024, "Kept files of one tenant [bytes], results among them; over it nothing new is taken.",
        low=1024,
    )  # fmt: skip
    file_keep_days: int = setting(30, "A file is deleted after this time [days].", low=1)
    batch_lines: int = setting(100_000, "Lines of one batch.", low=1)
    batches_per_entitlement: int = setting(10, "Batches of one entitlement that are open at once.", low=1)
    batch_in_flight: int = setting(
        256, "Lines of one entitlement's batches that run at once, however much is idle.", low=1
    )
    batch_slowdown: int = setting(
        5,
        "While people use a pool, lines of batches make steps longer by at most this, averaged over its engines [%].",
        low=0,
    )

    alert_webhook: str = setting("", "`http(s)://` address that alerts are sent to. Empty: they are only shown.")
    webhook_hosts: str = setting(
        "",
        "Hosts that alert rules and the scaling driver `webhook` may send to besides that of ALERT_WEBHOOK: `name` or "
        "`name:port`, with commas.",
    )
    webhook_secret: str = setting(
        "", "Signs what is sent to webhooks (`docs/guide/scaling.md`); at least 16 characters.", secret=True
    )
    public_url: str = setting(
        "",
        "The console's address as people reach it, e.g. `https://llm.example.org`: links in alerts begin with it. "
        "Empty: alerts carry no link.",
    )
    token_days: int = setting(
        0,
        "Longest life of a new access token to the management API [days]; one made without an end gets it. 0: none.",
        low=0,
    )
    second_factor: str = setting(
        "optional",
        "Who must have a second factor to log in with a password: `optional` (nobody must), `admins` or `all`. "
        "People of the identity provider have the provider's (`docs/guide/people.md`).",
    )
    oidc_issuer: str = setting(
        "",
        "Identity provider that people sign in with (OIDC), e.g. `https://login.example.org/realms/staff`; its "
        "`/.well-known/openid-configuration` is read. Empty: local accounts only (`docs/guide/people.md`).",
    )
    oidc_client_id: str = setting("", "What this installation is called there.")
    oidc_client_secret: str = setting("", "... and its secret there.", secret=True)
    oidc_client_secret_file: str = setting("", "A file that holds the secret, instead of OIDC_CLIENT_SECRET.")
    oidc_name: str = setting("your organisation", "The login page says `Sign in with <this>`.")
    oidc_scopes: str = setting(
        "openid profile email offline_access",
        "What is asked for, with spaces. Without a refresh token (`offline_access` at most providers) people are "
        "signed out when their access token ends.",
    )
    oidc_groups_claim: str = setting(
        "groups", "The claim that lists a person's groups; dots lead into objects, e.g. `realm_access.roles`."
    )
    oidc_recheck_s: float = setting(
        30.0, "The provider is asked this often whether a person is still there, and in which groups [s].", low=1
    )
    oidc_end_keys: bool = setting(
        False,
        "Whether API keys that a person made, or that are attributed to their user name or e-mail address, are revoked "
        "when the provider removes them.",
    )
    saml_metadata_file: str = setting(
        "",
        "Metadata of an identity provider that people sign in with by SAML 2.0, a file. Needs `make extras`. Empty: "
        "none (`docs/guide/people.md`).",
    )
    saml_name: str = setting("your organisation", "The login page says `Sign in with <this>`.")
    saml_groups_attribute: str = setting("groups", "The attribute that lists a person's groups.")
    saml_hours: float = setting(
        72.0,
        "How long a sign-in by SAML counts [hours]. Who does not sign in again by then is ended here, as one whom the "
        "provider removed: SAML has no way to ask.",
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
        "Where events for PagerDuty are sent; in the EU `https://events.eu.pagerduty.com/v2/enqueue`.",
    )
    replica_command: str = setting(
        "",
        "Command of one more engine for the scaling driver `local`, with `{port}`, `{index}` and `{name}`, e.g. "
        "`env CUDA_VISIBLE_DEVICES={index} vllm serve MODEL --port {port}`. Empty: a simulated one like the first.",
    )

    engine: str = setting(
        "",
        "Engines for `make up`: empty for simulated ones, one or more `http://host:port` (spaces or commas between) "
        "for servers that already run, `vllm` to start a real one on the CPU with a tiny model.",
        name="ENGINE",
    )
    engine_kind: str = setting(
        "",
        "Kind of the servers named in ENGINE (docs/reference/engines.md), such as `sglang`. Empty: as configured for "
        "the pool, `vllm` for a new one. Tenants share the prefix cache of kinds without `cache_salt`.",
    )
    demo_load: bool = setting(
        True, "Whether `make up` sends about one request a second as its demo tenants.", name="DEMO_LOAD"
    )
    engine_slots: int = setting(
        256, "Sequences each server named in ENGINE runs at once (vLLM's `--max-num-seqs`).", low=1
    )
    sim_replicas: int = setting(2, "Simulated engines started by `make up`.", low=1)
    sim_preset: str = setting("llama-3-8b-a100", "Hardware and model they imitate (`scheduling/core/presets`).")
    sim_slots: int = setting(0, "Sequences each runs at once; 0 takes the preset's.", low=0)

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
        return [o.strip() for o in self.trusted_origins.split(",") if o.strip()]

    @property
    def proxies(self) -> list[str]:
        """Whose word on where a request came from is taken."""
        named = [p.strip() for p in self.trusted_proxies.split(",") if p.strip()]
        return named or (["127.0.0.1", "::1"] if self.https else [])

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
