"""The gateway's settings, from the environment and the deployment's secret."""

from __future__ import annotations

import hmac

from django.conf import settings

from controlplane.env import Env
from scheduling.gateway.config import GatewayConfig


def gateway_config(env: Env) -> GatewayConfig:
    return GatewayConfig(
        max_body_bytes=env.max_body_bytes,
        max_header_bytes=env.max_header_bytes,
        max_open_per_key=env.max_open_requests_per_key,
        header_timeout_s=env.header_timeout_s,
        body_timeout_s=env.body_timeout_s,
        send_timeout_s=env.send_timeout_s,
        first_token_timeout_s=env.first_token_timeout_s,
        idle_token_timeout_s=env.idle_token_timeout_s,
        request_timeout_s=env.request_timeout_s,
        drain_s=env.drain_s,
        traces=env.traces,
        idempotency_keep_s=env.idempotency_keep_s,
        idempotency_keys=env.idempotency_keys,
        idempotency_answers=env.idempotency_answers,
        idempotency_bytes=env.idempotency_bytes,
        idempotency_secret=secret_for(b"Idempotency-Key"),
        history_secret=secret_for(b"length history"),
        tenant_secret=secret_for(b"tenant prefixes"),
    )


def secret_for(purpose: bytes) -> bytes:
    """The deployment's secret for one purpose: the same in every process that shares ``SECRET_KEY``."""
    return secrets_for(purpose)[0]


def secrets_for(purpose: bytes) -> tuple[bytes, ...]:
    """That secret, and those that it was before or will be: of ``SECRET_KEY_FALLBACKS``."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return tuple(hmac.digest(key.encode(), purpose, "sha256") for key in keys)


def installation_marks() -> tuple[str, ...]:
    """What this process says in Redis that it is this installation's (:mod:`scheduling.state.installation`), then what
    its processes say that have another secret key yet, or already."""
    return tuple(secret.hex()[:16] for secret in secrets_for(b"installation"))
