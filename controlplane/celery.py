"""Celery: every process of ours sends by this application; the worker hosts the dispatch loop and does the slow work.

No request's fate hangs on a message. A message carries an id; lost or doubled, it changes nothing but a wait.
:mod:`controlplane.apps` loads this wherever Django is set up: a process without it would send to an AMQP broker that
is not there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from celery import Celery
from celery.signals import celeryd_init, setup_logging, worker_process_init, worker_ready
from django.conf import settings

from controlplane import env_loading
from controlplane.embedded.child import die_with_parent, give_way
from controlplane.env import SettingsError
from controlplane.garbage_collection import look_rarely

if TYPE_CHECKING:
    from kombu.connection import Connection

    from scheduling.dispatch.runner import DispatchSetup


def broker_url(redis_url: str) -> str:
    """The same Redis in kombu's spelling."""
    parts = urlsplit(redis_url)
    if parts.scheme == "rediss" and "ssl_cert_reqs" not in parse_qs(parts.query):
        return f"{redis_url}{'&' if parts.query else '?'}ssl_cert_reqs=required"  # without it kombu checks nothing
    if parts.scheme != "unix":
        return redis_url
    credentials = f"{parts.netloc}" if "@" in parts.netloc else ""
    return f"redis+socket://{credentials}{parts.path}?virtual_host={parse_qs(parts.query).get('db', ['0'])[0]}"


# Of who sends: a broker that is away costs a second at most, because what is due is found without the message as well.
SENDING = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5, "max_retries": 0}


class Application(Celery):
    """Reads with patience, sends with none."""

    def connection_for_write(self, url: str | None = None, **options: Any) -> Connection:
        options["transport_options"] = {**SENDING, **(options.get("transport_options") or {})}
        connection: Connection = super().connection_for_write(url, **options)
        return connection


PROVE_S = 15.0  # a new process of tasks has asked the database by then

app = Application("quartermaster")
app.conf.update(
    broker_url=broker_url(settings.ENV.redis_url) if settings.ENV.redis_url else "memory://",
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # What Redis refuses for a while (no writes, a user's rights) is an outage as well. Otherwise the worker would end
    # over each such answer, and the pools that it leads with it.
    broker_channel_error_retry=True,
    broker_pool_acquire_timeout=1.0,  # of who sends: where all connections wait for a broker, the next does not
    broker_transport_options={
        "global_keyprefix": "qm:celery:",
        # A worker that died gives its task to another after a minute. kombu looks for such tasks every tenth time it
        # looks at all, unless told otherwise: redelivery then took 100 s.
        "visibility_timeout": 60,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
    },
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_cancel_long_running_tasks_on_connection_loss=True,  # it will be delivered again: never twice at once
    worker_prefetch_multiplier=1,
    worker_soft_shutdown_timeout=30,
    worker_send_task_events=False,
    # Nobody commands a worker through Redis: whoever can write there could end it. It would also listen by a pattern
    # (PSUBSCRIBE) that a Redis user with `&qm:*` may not use, and end itself over the refusal.
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    # Arguments are ids, but what is not shown cannot leak.
    task_store_errors_even_if_ignored=False,
    timezone="UTC",
)
app.autodiscover_tasks([
    "tenants", "telemetry", "controlplane.lab", "controlplane.tuning", "controlplane.batches", "controlplane.responses",
])  # fmt: skip


def _dispatch() -> DispatchSetup:
    from controlplane.wiring import make_dispatch  # its models load once Celery has set Django up

    return make_dispatch()


@celeryd_init.connect
def _host_dispatch(**_: Any) -> None:
    """Before the worker looks for its steps. Who only sends need not import what dispatches."""
    from scheduling.dispatch.bootstep import host_dispatch

    try:
        env_loading.needs_redis(settings.ENV)
    except SettingsError as error:
        raise SystemExit(str(error)) from None
    if not settings.ENV.embedded:
        from controlplane import database

        database.waits(database.WORKER_S)  # its task processes are forks and wait as long
    host_dispatch(app, _dispatch)


@setup_logging.connect
def _keep_django_logging(**_: Any) -> None:
    """Celery would put its own handlers in; Django's are set already."""


@worker_ready.connect
def _spare_steps(**_: Any) -> None:
    """The worker leads pools; what it imports late it has imported by now, and its first task processes are forked."""
    look_rarely()


@worker_process_init.connect
def _end_with_worker(**_: Any) -> None:
    """A task's process does not outlive a killed worker, and steps aside for what decides and serves."""
    die_with_parent()
    give_way(settings.ENV.task_nice)
    if settings.ENV.embedded:
        end_unless(_ask_database, PROVE_S)


def end_unless(ask: Callable[[], object], limit_s: float) -> None:
    """Ends this process where ``ask`` does not return in time; its worker forks another one.

    The worker leads pools in threads of its own. A process that is forked (another was killed) while one of them is
    inside SQLite inherits a mutex that nobody will ever release: it would take a task and hang with it for ever.
    """
    former = signal.signal(signal.SIGALRM, signal.SIG_DFL)  # nothing of Python's runs where a C library waits
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        ask()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _ask_database() -> None:
    """Opens the database and reads: by then all locks were taken once."""
    from django.db import DatabaseError, connection

    with suppress(DatabaseError):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM django_migrations LIMIT 1")
            cursor.fetchall()
        connection.close()
