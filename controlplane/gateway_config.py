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
    return hmac.digest(settings.SECRET_KEY.encode(), purpose, "sha256")


def installation_mark() -> str:
    """What all processes of this installation say in Redis that it is theirs (:mod:`scheduling.state.installation`)."""
    return secret_for(b"installation").hex()[:16]
