"""The frozen words of the core: what it may know of tenants, pools and requests.

Rows of the database become these types at the door (``tenants/specs.py``); the gateway, the dispatch loop, the Redis
reference models and the simulator all speak them. Times are seconds on the caller's clock (epoch seconds live, virtual
seconds in the simulator), sizes are tokens, and KV is counted in tokens as well: ``bytes = tokens *
kv_bytes_per_token``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from scheduling.core.capacity.uncounted import NO_BEGINNINGS, Beginnings
from scheduling.core.frozen import quickly_made
from scheduling.core.ledger.money import BudgetSpec, RateSpec

MAX_GRAMMAR_BYTES = 128 * 1024  # no tier may send a larger schema, regex or grammar
MAX_SEQUENCES = 16  # that one request counts as
LONG_TOKENS = 2048  # the shortest prompt whose prefill may be interrupted: shorter ones are not followed
LEAST_CREDITS = 4  # prefill credits of a prompt that must be left then: with fewer, there is room soon anyway


class ServiceClass(StrEnum):
    """What an entitlement may count on (token pools, Table 1)."""

    DEDICATED = "dedicated"
    GUARANTEED = "guaranteed"
    ELASTIC = "elastic"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"


class EntitlementState(StrEnum):
    PENDING = "pending"
    BOUND = "bound"
    DEGRADED = "degraded"
    EXPIRED = "expired"


class ScalingMode(StrEnum):
    """Who acts on what the planner proposes."""

    OFF = "off"
    ADVISE = "advise"  # proposals are stored and shown
    AUTOMATIC = "automatic"  # a driver carries them out


class PredictorMode(StrEnum):
    """How a pool foresees output lengths (``scheduling.core.estimate``)."""

    OFF = "off"  # every answer is expected to reach its bound
    HISTORY = "history"  # by the application's past answers, else by category with drift
    SIMILAR = "similar"  # by the answers to similar prompts, else as above


class PrefixCache(StrEnum):
    """Whose prompts the engines of a pool may find again in their prefix caches (vLLM's ``cache_salt``)."""

    ISOLATED = "isolated"  # each tenant its own: requests carry a salt of their tenant
    SHARED = "shared"  # all tenants': no salt, but for a client's own
    UNSALTED = "unsalted"  # engines that refuse the field get none; a client's own is refused


class Phase(StrEnum):
    """Which part of a request a replica does, where prefill and decode are apart."""

    BOTH = "both"
    PREFILL = "prefill"  # it computes prompts and hands their KV cache over; it writes no answers
    DECODE = "decode"  # it takes that KV cache and writes the answer


class OverLimit(StrEnum):
    """What a tier does with a request over its entitlement's concurrency."""

    REFUSE = "refuse"  # 429 with the time until a slot is expected
    WAIT = "wait"  # queue it, up to ``queue_limit`` and ``max_wait_s``


@dataclass(frozen=True, slots=True)
class Slo:
    """A promise about time (QoServe 3.2). Interactive: TTFT and TBT [s]. Not interactive: TTLT [s]."""

    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None

    @property
    def interactive(self) -> bool:
        return self.ttft_s is not None


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A contract template."""

    name: str
    service_class: ServiceClass
    rank: int  # strict order of tiers: 0 goes first
    weight: float  # share where shares are weighted
    slo: Slo
    over_limit: OverLimit = OverLimit.REFUSE
    queue_limit: int = 100  # requests of one entitlement that may wait; 0 refuses instead of queueing
    max_wait_s: float = 30.0
    max_grammar_bytes: int = MAX_GRAMMAR_BYTES  # of what constrains one request's output; 0: no structured output


@dataclass(frozen=True, slots=True)
class EntitlementSpec:
    """A tenant's right to a share ``(lambda_e, chi_e, r_e)`` of a pool."""

    id: str  # slug, unique over all pools
    tenant: str
    pool: str
    tier: TierSpec
    state: EntitlementState
    tokens_per_s: float  # lambda_e; 0 means no token budget is enforced
    burst_tokens: float  # depth of the bucket
    kv_tokens: int  # chi_e in tokens; 0 means not limited
    concurrency: int  # r_e
    valid_until_s: float | None = None
    paused: bool = False  # its tenant was paused by an operator: nothing new is admitted
    adapter: str = ""  # the adapter of its pool that it is for (:class:`AdapterSpec`); empty: the base model


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """Tokens a tenant may use in one calendar period (UTC), over all pools. None: no such limit."""

    period: str  # "day" | "month"
    soft_tokens: int | None = None  # passing it tells the operators
    hard_tokens: int | None = None  # from here on its requests are refused until the period ends


@dataclass(frozen=True, slots=True)
class ScalingSpec:
    """How many replicas a pool may have, and who changes that. Times are seconds."""

    mode: ScalingMode = ScalingMode.OFF
    min_replicas: int = 1
    max_replicas: int = 1
    driver: str = ""
    params: dict[str, float | int | str] = field(default_factory=dict)
    headroom: float = 0.2
    up_cooldown_s: float = 30.0
    down_cooldown_s: float = 300.0
    drain_limit_s: float = 600.0
    idle_s: float = 0.0  # without any request for so long, all replicas go

    @property
    def to_zero(self) -> bool:
        """Whether it may have no replica on purpose: somebody adds one when a request comes."""
        return self.mode is ScalingMode.AUTOMATIC and bool(self.driver) and self.min_replicas == 0 and self.idle_s > 0


FULL_SPEED = 1000  # of the fastest replica of a pool, and of all where they are not told apart


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One server (replica) of a pool, of the pool's kind of engine."""

    id: str
    pool: str
    url: str  # http://host:port, no path
    slots: int  # sequences it may run at once
    kv_tokens: int  # KV cache [tokens]
    api_key: str = ""
    draining: bool = False
    dcgm_url: str = ""  # exporter with GPU metrics; empty: the backend's own /metrics is tried
    managed: bool = False  # a scaling driver may drain and remove it
    leaving_since_s: float | None = None  # it drains in order to be removed
    tokens_per_s: float = 0.0  # what it was measured to process, prompt and output together; 0: not measured
    prefill_tokens: int = 0  # prompt tokens it may have before their first output token at once; 0: no bound
    step_tokens: int = 0  # what its engine computes in one step at most; 0: it does not say
    phase: Phase = Phase.BOTH
    longest: int = 0  # KV tokens that one request may need there; 0: as many as the pool allows
    speed: int = FULL_SPEED  # per mille of the fastest of its pool
    token_us: int = 0  # between two tokens there, where it is slower than others (``core/engine/token_time.py``)
    resumes: bool = False  # its engine keeps what it has computed of a prompt that is taken back from it


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A LoRA adapter of a pool's model. It has a name of its own and the pool's capacity."""

    id: str  # slug
    model: str  # the name clients ask for
    name: str  # the name the engines list it under
    source: str = ""  # where engines find its weights; empty: nobody can ask them to load it


def _class_weights() -> dict[ServiceClass, float]:
    return {
        ServiceClass.DEDICATED: 1000.0,
        ServiceClass.GUARANTEED: 1000.0,
        ServiceClass.ELASTIC: 100.0,
        ServiceClass.SPOT: 1.0,
        ServiceClass.PREEMPTIBLE: 0.1,
    }


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How strongly each factor of an entitlement's weight counts (token pools, Table 1 and eq. 1-3)."""

    slo: float = 2.0  # alpha_slo
    burst: float = 1.0  # alpha_burst
    debt: float = 4.0  # alpha_debt
    gamma_debt: float = 0.7  # what is left of a debt after one tick of 5 s
    gamma_burst: float = 0.7  # likewise of a burst; the paper prints none
    class_weights: dict[ServiceClass, float] = field(default_factory=_class_weights)


COEFFICIENTS = Coefficients()  # those of a pool that names none


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One model behind one capacity."""

    id: str  # slug
    model: str  # the name clients ask for
    upstream_model: str  # the name the engines serve it under
    backends: tuple[BackendSpec, ...]
    policy: str = "unified"
    policy_params: dict[str, float | int | str] = field(default_factory=dict)
    policy_version: int = 1  # counts changes of policy, modifiers and routing
    modifiers: dict[str, dict[str, float | int | str]] = field(default_factory=dict)  # around the policy, by name
    routing: str = "least_work"
    routing_params: dict[str, float | int | str] = field(default_factory=dict)
    max_model_len: int = 8192
    default_output_tokens: int = 512  # applied when the client names no bound
    max_output_tokens: int = 4096
    queue_limit: int = 10_000  # requests that may wait in the pool
    queue_bytes: int = 256 * 1024 * 1024  # bodies of waiting requests, over all gateways
    threshold: float = 0.0  # weight under which a contended pool refuses
    headroom_slots: int = 0  # the last free slots, kept for who is within a baseline
    headroom_most: int = 0  # how far they may be raised while it serves (core/capacity/headroom.py); 0: nobody does
    aliases: tuple[str, ...] = ()  # other names clients may ask for
    engine: str = "vllm"  # the kind of its engines (scheduling.engines.kinds)
    kv_bytes_per_token: int = 0  # 0: not known
    predictor: PredictorMode = PredictorMode.OFF
    prefix_cache: PrefixCache = PrefixCache.ISOLATED
    tokenizer: str = ""  # counts input tokens: a tokenizer.json on the gateway's disk, or "backend"; empty: estimated
    scaling: ScalingSpec = field(default_factory=ScalingSpec)
    coefficients: Coefficients = field(default_factory=Coefficients)  # of weight, debt and burst
    prefill_credit: int | None = None  # of each replica [prompt tokens]; None: found while it serves, 0: no bound
    slo_mean_s: float | None = None  # what SLO targets are compared with; None: the mean over bound entitlements
    adapters: tuple[AdapterSpec, ...] = ()  # of its model
    load_adapters: bool = False  # engines may be asked to load them
    wakes_in_s: float = 0.0  # how long a wake is expected to take, until one was seen; 0: nobody said
    sleep_after_s: float = 0.0  # without work its replicas that can sleep are put to sleep after so long; 0: never
    adapter: str = ""  # as gateways see the pool under an adapter's name: which, as engines list it
    base: PoolSpec | None = None  # and then the pool itself


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What a key or a user may take of an entitlement (:mod:`scheduling.core.admission.key_limits`). 0 is no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrency)


@dataclass(frozen=True, slots=True)
class KeySpec:
    """An API key as the gateway knows it: never the secret."""

    id: str  # the public part
    digest: bytes  # SHA-256 of the secret part
    entitlement: str  # the only one it opens; empty: those of its project
    expires_s: float | None = None
    project: str = ""
    subset: tuple[str, ...] = ()  # of the project's entitlements; empty: all
    user: str = ""  # to whom its use is attributed where a request names no user
    limits: RateLimits | None = None  # in each pool that it opens
    user_limits: RateLimits | None = None  # of each of its users, likewise
    tokens_per_day: int = 0  # in all pools together; 0: no limit


@dataclass(frozen=True, slots=True)
class FallbackSpec:
    """What takes a model's requests when it cannot."""

    to: str  # a model, alias or entitlement
    when: frozenset[str]  # unavailable | no_room | over_limit | too_long


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """A team or application of a tenant, whose keys open several entitlements."""

    id: str  # slug
    tenant: str
    entitlements: tuple[str, ...]  # that its keys may open
    aliases: dict[str, str] = field(default_factory=dict)  # names clients use, to models or entitlements
    default_model: str = ""  # of requests that name none; empty: refused
    fallbacks: dict[str, FallbackSpec] = field(default_factory=dict)  # by model, alias or entitlement
    user_limits: RateLimits | None = None  # of each of its users, whatever key of it they use


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything configured, at one version. Immutable: a change is a new catalog."""

    version: int
    pools: dict[str, PoolSpec]
    entitlements: dict[str, EntitlementSpec]
    keys: dict[str, KeySpec]  # active keys by id
    quotas: dict[str, tuple[QuotaSpec, ...]] = field(default_factory=dict)  # by tenant
    projects: dict[str, ProjectSpec] = field(default_factory=dict)
    budgets: dict[str, tuple[BudgetSpec, ...]] = field(default_factory=dict)  # by tenant
    rates: dict[str, tuple[RateSpec, ...]] = field(default_factory=dict)  # by pool; empty where there is no budget


@quickly_made
@dataclass(frozen=True, slots=True)
class Estimate:
    """What is believed about a request before it runs."""

    input_tokens: int
    output_bound: int  # never exceeded: what ``max_tokens`` will say
    output_tokens: float  # expected
    kv_tokens: int  # reserved while it runs: input + bound
    cost_tokens: int  # charged to the bucket at admission, settled to actual at the end
    source: str = "bound"  # which predictor said so
    output_p90: float = 0.0  # 90 of 100 such answers are not longer; 0: not predicted
    category: str = ""  # what the prompt is about; empty: not looked at
    output_lengths: tuple[float, ...] = ()  # the whole distribution, as in QueuedRequest
    output_probabilities: tuple[float, ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """What ordering and routing may know of a waiting request; its true output length is not part of it."""

    id: str
    seq: int  # arrival order within the pool
    arrival_s: float
    entitlement: str
    tenant: str
    tier: str
    rank: int  # the tier's rank, 0 first
    weight: float
    service_class: ServiceClass
    input_tokens: int
    output_bound: int
    output_tokens: float
    kv_tokens: int
    attempt: int = 1
    client_priority: int = 0  # vLLM's polarity: lower is sooner; orders within the entitlement only
    ttft_deadline_s: float | None = None
    ttlt_deadline_s: float | None = None
    expires_s: float | None = None  # never granted after this
    exclude_backend: str = ""  # where an earlier attempt failed
    gateway: str = ""
    concurrency: int = 0  # r_e: how many of this entitlement may run
    prefilled: int = 0  # prompt tokens already computed, where its prefill was interrupted
    generated: int = 0  # output tokens already generated, likewise
    output_lengths: tuple[float, ...] = ()  # predicted output lengths [tokens], increasing; empty: only a mean is known
    output_probabilities: tuple[float, ...] = ()  # of those lengths
    prefixes: str = ""  # chained hashes of how the prompt begins (``scheduling.core.placement.rule``); empty: not known
    hint_deadline_s: float | None = None  # before the contract's, by its client's wish; within the entitlement only
    adapter: str = ""  # the one it is for, as engines name it; empty: the base model, which every replica has
    uncounted_tokens: int = 0  # of its prompt, on the replica where it runs (``core/placement/cached_prompts.py``)
    uncounted_point: str = ""  # up to which they are
    sequences: int = 1  # that its engine runs for it at once: its answers, or prompts, up to MAX_SEQUENCES
    resumes_at: str = ""  # the replica that keeps what was computed of its prompt (``scheduler/prefill_preemption.py``)
    preempted: int = 0  # how often its prefill was interrupted
    pace_us: int = 0  # most that a replica may take between tokens (``core.placement.pace_wait``); 0: none promised
    leaves_s: float | None = None  # when its client or proxy leaves unless that many tokens are there; None: not said
    leaves_tokens: float = 0.0  # that are generated before it begins: of a whole answer, as many as it may well have
    fills: float = 1.0  # the part of its entitlement's queue that it takes; 1: others are refused because it waits

    @property
    def prefill_tokens(self) -> int:
        """What it takes of its replica's prefill credit until its first output token [prompt tokens]."""
        return self.input_tokens - self.uncounted_tokens


PREFILL_PER_S = 8_500.0  # prompt tokens that a replica is taken to prefill a second until measured: QoServe's A100


def oldest_waits(waiting: Iterable[QueuedRequest], now_s: float) -> dict[str, float]:
    """How long the oldest of these requests has waited [s], by tier."""
    oldest: dict[str, float] = {}
    for request in waiting:
        oldest[request.tier] = max(oldest.get(request.tier, 0.0), now_s - request.arrival_s)
    return oldest


def prefill_fits(credit: int, used: int, need: int) -> bool:
    """Whether a replica's prefill credit has room for ``need`` more prompt tokens beside ``used``, whose first output
    token has not come and is not predicted to come by then (``scheduling.core.capacity.prefill_pace``). 0 is no bound;
    a prompt above the credit runs alone. For owners of reserved capacity, within it, ``used`` is what owners use there:
    they go before everyone, so nothing is decided too early for them, and a neighbour's prompt, however long, is not in
    their way. To all others everything counts.
    """
    return credit == 0 or used == 0 or used + need <= credit


def kv_fits(room: int, used: int, need: int, owner: bool) -> bool:
    """Whether ``need`` more KV tokens may be reserved of a replica's ``room``. If more than that is reserved already,
    because overcommit was reduced, owners of reserved capacity do not wait until it has drained: what they reserve was
    never overcommitted, and their engine preempts others for them."""
    return used + need <= room or (owner and used > room)


def is_long(left: int, credit: int) -> bool:
    """Whether so much is left of a replica's prompts that their prefill is worth an interruption
    (``scheduling.core.scheduler.prefill_preemption``) [tokens]."""
    return 0 < LEAST_CREDITS * credit <= left


@dataclass(slots=True)
class BackendView:
    """What the scheduler believes of a replica now; ``step`` books its own grants here."""

    id: str
    slots: int
    kv_tokens: int
    running: int = 0  # sequences: a request of several answers or prompts is several
    kv_used: int = 0
    work_tokens: float = 0.0  # outstanding estimated work [tokens]
    ready: bool = True
    observed_s: float = 0.0  # when this was true
    prefill_credit: int = 0  # prompt tokens that may be granted and not prefilled at once; 0: no bound
    prefill_used: int = 0  # of those: granted, their first output token has not come and is not predicted to
    prefill_owned: int = 0  # of ``prefill_used``: by owners of reserved capacity
    falls_s: float = 0.0  # until fewer are, if no first token comes; 0: not before one does
    prefill_per_s: float = 0.0  # prompt tokens it was measured to compute a second; 0: not known
    adapters: frozenset[str] = frozenset()  # that it has loaded
    longest: int = 0  # KV tokens that one request may need; 0: no bound
    speed: int = FULL_SPEED  # per mille of the fastest of its pool
    token_us: int = 0  # between two tokens here, where it is slower than others; 0: it is not, or not known
    cache_trust: int = 0  # per mille believed of what a prompt should have cached (``placement/cached_prompts.py``)
    uncounted_most: int = 0  # tokens of beginnings that may be in flight and not count
    uncounted: Beginnings = NO_BEGINNINGS  # that are
    resumes: bool = False  # its engine keeps what it has computed of a prompt that is taken back from it

    @property
    def load_tokens(self) -> float:
        """Outstanding work, as so many tokens would take the fastest replica of its pool."""
        return self.work_tokens * FULL_SPEED / self.speed

    def keeps(self, pace_us: int) -> bool:
        """Whether it is fast enough for a promised time between tokens (:func:`core.placement.pace_wait.pace_us`)."""
        return not 0 < pace_us < self.token_us

    def serves(self, adapter: str) -> bool:
        """Whether it has what a request is for. Every replica has the base model (empty)."""
        return not adapter or adapter in self.adapters

    def room_for(self, kv_tokens: int, prefill_tokens: int, owner: bool = False) -> bool:
        """The one rule for room: a slot, KV cache and prefill credit. ``owner``: of reserved capacity, within it."""
        return self.has_slot_and_kv(kv_tokens, owner) and self.has_credit(prefill_tokens, owner)

    def has_credit(self, prefill_tokens: int, owner: bool = False) -> bool:
        """Whether its prefill credit has room, whatever else it lacks."""
        return prefill_fits(self.prefill_credit, self.prefill_seen(owner), prefill_tokens)

    def prefill_seen(self, owner: bool) -> int:
        """What of its prefill credit is used for an owner of reserved capacity, or for anybody else."""
        return self.prefill_owned if owner else self.prefill_used

    @property
    def computes_long(self) -> bool:
        """Whether it works on a prompt whose prefill may be interrupted."""
        return self.resumes and is_long(self.prefill_used, self.prefill_credit)

    def take_prefill(self, request: QueuedRequest, owned: bool) -> None:
        """Its prompt holds of the prefill credit from now on."""
        self.prefill_used += request.prefill_tokens
        if owned:
            self.prefill_owned += request.prefill_tokens
        if request.uncounted_tokens:
            self.uncounted = self.uncounted.with_one(request.uncounted_point, request.uncounted_tokens)

    def give_prefill(self, request: QueuedRequest, owned: bool) -> None:
        """It holds that no more."""
        self.prefill_used -= request.prefill_tokens
        if owned:
            self.prefill_owned -= request.prefill_tokens
        if request.uncounted_tokens:
            self.uncounted = self.uncounted.without_one(request.uncounted_point)

    def takes(self, kv_tokens: int) -> bool:
        """Whether a request that needs so much fits into it at all, were nothing else there."""
        return kv_tokens <= self.kv_tokens and not 0 < self.longest < kv_tokens

    def has_slot_and_kv(self, kv_tokens: int, owner: bool = False) -> bool:
        """Whether it has a slot and KV cache free, whatever its prefill credit. ``owner``: whether the request is one
        within reserved capacity.

        A slot is free while fewer sequences run than there are slots. A request of several sequences needs one free
        slot only, and may exceed the slots by the rest: if it had to wait for all of them, requests of one sequence
        would overtake it for ever.
        """
        free = self.ready and self.running < self.slots and kv_fits(self.kv_tokens, self.kv_used, kv_tokens, owner)
        return free and not 0 < self.longest < kv_tokens


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an entitlement stands with its pool (token pools, eq. 1-3): shared by admission and ordering."""

    weight: float  # w_e, eq. 1
    debt: float = 0.0  # d_e, eq. 2; negative: it had more than its baseline
    burst: float = 0.0  # b_e, eq. 3
    share: float = 1.0  # of the tokens that its class had, as a multiple of its part by concurrency; the leader's alone


@dataclass(slots=True)
class PoolView:
    """A pool as one decision sees it."""

    backends: dict[str, BackendView]
    running_by_entitlement: dict[str, int] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)  # by entitlement; one without has no debt or burst
    coefficients: Coefficients = COEFFICIENTS  # by which the pool weighs those
    token_s: float = 0.0  # that answers take for each token, as measured (``core/engine/token_pace.py``); 0: not known

    def prefill_per_s(self, usual: float) -> float:
        """What the fastest replica computes in a second [prompt tokens]; ``usual`` while none was measured."""
        return max((b.prefill_per_s for b in self.backends.values() if b.ready and b.prefill_per_s > 0), default=usual)

    def free_slots(self) -> int:
        return sum(max(0, b.slots - b.running) for b in self.backends.values() if b.ready)


@dataclass(frozen=True, slots=True)
class Grant:
    """The decision that a request may run now on a backend, and why."""

    request: QueuedRequest
    backend: str
    reason: str  # one line a person can read: "rank 0 before 3 waiting, least work of 2"
