"""Rows of the catalog as the frozen types of the core, one by one. Pure but for what a row reads of its relations."""

from __future__ import annotations

from datetime import datetime

from scheduling.core import types as core
from scheduling.core.admission import entitlement
from tenants.models import Entitlement, Pool, Slo, Tier


def entitlement_spec(row: Entitlement, tier: core.TierSpec, now: datetime) -> core.EntitlementSpec:
    return core.EntitlementSpec(
        id=row.slug,
        tenant=row.tenant.slug,
        pool=row.pool.slug,
        tier=tier,
        state=core.EntitlementState(row.state_at(now)),
        tokens_per_s=row.tokens_per_s,
        burst_tokens=row.burst_tokens,
        kv_tokens=row.kv_tokens,
        concurrency=row.concurrency,
        valid_until_s=row.valid_until.timestamp() if row.valid_until else None,
        paused=row.tenant.paused_since is not None,
        adapter=row.adapter.slug if row.adapter is not None else "",
    )


def slo_spec(slo: Slo) -> core.Slo:
    return core.Slo(ttft_s=slo.ttft_s, tbt_s=slo.tbt_s, ttlt_s=slo.ttlt_s)


def tier_spec(tier: Tier) -> core.TierSpec:
    return core.TierSpec(
        name=tier.slug,
        service_class=core.ServiceClass(tier.service_class),
        rank=tier.rank,
        weight=tier.weight,
        slo=slo_spec(tier.slo),
        over_limit=core.OverLimit(tier.over_limit),
        queue_limit=tier.queue_limit,
        max_wait_s=tier.max_wait_s,
        max_grammar_bytes=tier.max_grammar_bytes,
    )


def scaling_spec(pool: Pool) -> core.ScalingSpec:
    return core.ScalingSpec(
        mode=core.ScalingMode(pool.scaling_mode),
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        driver=pool.scaling_driver,
        params=dict(pool.scaling_params),
        headroom=pool.scaling_headroom,
        up_cooldown_s=pool.scale_up_cooldown_s,
        down_cooldown_s=pool.scale_down_cooldown_s,
        drain_limit_s=pool.drain_limit_s,
        idle_s=(pool.sleep_after_s or 0.0) if pool.min_replicas == 0 else 0.0,
    )


def pool_spec(pool: Pool) -> core.PoolSpec:
    return core.PoolSpec(
        id=pool.slug,
        model=pool.model,
        upstream_model=pool.upstream_model or pool.model,
        backends=tuple(backend.spec() for backend in pool.backends.all()),
        policy=pool.policy,
        policy_params=dict(pool.policy_params),
        policy_version=pool.policy_version,
        modifiers={name: dict(params) for name, params in pool.modifiers.items()},
        routing=pool.routing,
        routing_params=dict(pool.routing_params),
        max_model_len=pool.max_model_len,
        default_output_tokens=pool.default_output_tokens,
        max_output_tokens=pool.max_output_tokens,
        queue_limit=pool.queue_limit,
        queue_bytes=pool.queue_bytes,
        threshold=pool.threshold,
        headroom_slots=pool.headroom_slots or 0,  # automatic: once its entitlements are known
        aliases=tuple(pool.aliases),
        engine=pool.engine,
        kv_bytes_per_token=pool.kv_bytes_per_token,
        predictor=core.PredictorMode(pool.predictor),
        tokenizer=pool.tokenizer,
        prefix_cache=core.PrefixCache(pool.prefix_cache),
        coefficients=entitlement.read_coefficients(pool.coefficients),
        prefill_credit=pool.prefill_credit,
        slo_mean_s=pool.slo_mean_s,
        scaling=scaling_spec(pool),
        wakes_in_s=pool.wakes_in_s or 0.0,
        sleep_after_s=(pool.sleep_after_s or 0.0) if pool.min_replicas else 0.0,
        adapters=tuple(adapter.spec() for adapter in pool.adapters.all()),
        load_adapters=pool.load_adapters,
    )
