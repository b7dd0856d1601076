"""Random walks."""

from __future__ import annotations

import random

from tests.support.state_model.credit import CreditMoves
from tests.support.state_model.faults import FaultMoves
from tests.support.state_model.leader import LeaderMoves
from tests.support.state_model.members import (
    ADAPTERS,
    BACKENDS,
    CREDITS,
    ENTITLEMENTS,
    GATEWAYS,
    HOLDERS,
    LONGEST,
    REASONS,
    REQUESTS,
    SPEEDS,
    STEPS,
    WEIGHTS,
)
from tests.support.state_model.requests import RequestMoves


class World(RequestMoves, CreditMoves, LeaderMoves, FaultMoves):
    """All moves on one pool."""


def step(world: World, rng: random.Random) -> None:
    """One random move. Odds favour what makes traffic; rare moves lose the state."""
    n, again, holder = rng.randrange(REQUESTS), rng.random() < 0.4, rng.choice(HOLDERS)
    off = rng.choice((0, 0, 0, 0, 0, 1, -1))
    some = [rng.randrange(REQUESTS) for _ in range(rng.randint(1, 6))]
    if world.reference.queue and rng.random() < 0.7:
        some = [int(name[1:]) for name in rng.sample(sorted(world.reference.queue), min(3, len(world.reference.queue)))]
    live = sorted(world.reference.held | world.reference.queue)
    if world.reference.evicted and rng.random() < 0.3:
        live = sorted(world.reference.evicted)
    target = int(rng.choice(live)[1:]) if live and rng.random() < 0.8 else n
    move = rng.choices(
        ("admit", "finish", "grant", "renew", "requeue", "sweep", "time", "elect", "ready", "announce", "record",
         "suspect", "resign", "listen", "look", "evict", "standing", "stuck", "corrupt", "flush",
         "pause", "report", "first", "prefilled", "adapters", "cached"),
        (40, 24, 16, 8, 6, 5, 10, 5, 5, 4, 2, 1, 1, 3, 3, 8, 4, 2, 2, 0.4, 1, 0.5, 8, 8, 3, 5),
    )[0]  # fmt: skip
    if move == "admit":
        world.admit(n, again)
    elif move == "finish":
        used = rng.choice((rng.randrange(250), rng.randrange(250), rng.choice((-5, 10**9, 2**63, 10**23))))
        world.finish(target, off, rng.choice(REASONS), used, rng.random() < 0.7, again)
    elif move == "grant":
        world.grant(holder, [(i, rng.choice(world.roomy() or BACKENDS), off) for i in some], again)
    elif move == "renew":
        world.renew(rng.choice(GATEWAYS), [*some, target], off, again)
    elif move == "requeue":
        world.requeue(target, off, again)
    elif move == "sweep":
        for _ in range(rng.choice((1, 1, 4))):  # a leader sweeps regularly; a lone sweep after a gap ends nothing
            world.sweep(holder, again)
            world.pass_time(rng.choice((1, 1_900, 4_000)))
    elif move == "time":
        world.pass_time(rng.choice((1, 7, 250, 250, 3_000, 3_000, 6_500, 10_001, 121_000)))
    elif move == "elect":
        world.elect(holder, rng.random() < 0.5, again)
        if rng.random() < 0.7:
            world.set_stuck(holder, 0, again)  # it has decided
    elif move == "ready":
        slots, ejected = rng.choice((None, 1, 2, 2, 3)), rng.random() < 0.5
        world.set_ready(holder, rng.choice(BACKENDS), slots, again, ejected, rng.choice(CREDITS), rng.choice(STEPS),
                        rng.choice(LONGEST), rng.choice(SPEEDS), rng.random() < 0.7)  # fmt: skip
    elif move == "adapters":
        homes = {name: (rng.random() < 0.5, set(rng.sample(BACKENDS, rng.choice((0, 1, 1, 2))))) for name in ADAPTERS}
        world.set_adapters(holder, {name: homes[name] for name in ADAPTERS if rng.random() < 0.8}, again)
    elif move == "first":
        world.first_tokens([(i, off) for i in [*some, target]], again)
    elif move == "prefilled":
        waiting, age_ms, hurry = rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 5, 400)), rng.choice((0.45, 0.9, 1.0))
        world.prefilled(holder, rng.choice(BACKENDS), waiting, age_ms, hurry)
    elif move == "announce":
        world.announce(n, rng.choice(("", *BACKENDS)), again)
    elif move == "record":
        world.record(some, again)
    elif move == "suspect":
        world.suspect(rng.choice(BACKENDS))
    elif move == "pause":
        world.pause(rng.choice(BACKENDS), rng.random() < 0.5)
    elif move == "report":
        world.report(rng.choice(BACKENDS))
    elif move == "resign":
        world.resign(holder, again)
    elif move == "evict":
        world.evict(holder, [(i, rng.choice(("", "", "", "b1")), off) for i in some], again)
    elif move == "standing":
        names = [spec.id for spec in ENTITLEMENTS]
        found = {name: rng.choice(WEIGHTS) for name in rng.sample(names, rng.randint(1, len(names)))}
        world.set_standing(holder, found, rng.sample(names, rng.choice((0, 0, 1))), again)
    elif move == "stuck":
        world.set_stuck(holder, rng.choice((0, 0, 0, 1, 3)), again, rng.choice((None, 0, 1, 3)))
    elif move == "cached":
        trust = rng.choice((-1, 0, 333, 1000, 1000, 1000))
        world.set_cached(holder, rng.choice(BACKENDS), trust, rng.choice((0, 25, 90, 10**6)), again)
    elif move == "corrupt":
        world.corrupt(holder, rng)
    elif move == "look":
        world.look(rng.sample([spec.id for spec in ENTITLEMENTS], rng.randint(0, len(ENTITLEMENTS))))
    elif move == "listen":
        world.listen(
            set(rng.choice((*[GATEWAYS] * 6, GATEWAYS[:1], ()))), set(rng.choice((HOLDERS, HOLDERS, HOLDERS[:1], ())))
        )
    else:
        world.flush()


def begin(world: World, rng: random.Random) -> None:
    """A pool with a leader and two replicas."""
    world.elect(HOLDERS[0], True, True)
    world.set_stuck(HOLDERS[0], 0, True)
    for at in BACKENDS[:2]:
        world.set_ready(HOLDERS[0], at, 2, True, False, rng.choice(CREDITS))


def walk(world: World, seed: int, steps: int) -> None:
    """``steps`` random moves after a beginning."""
    rng = random.Random(seed)
    begin(world, rng)
    for i in range(steps):
        try:
            step(world, rng)
        except AssertionError as e:
            raise AssertionError(f"seed {seed}, step {i}: {e}") from e
