"""Writes of the strategic loop: its mode, canaries, what becomes of them, and the way back.

Every change of the serving policy goes through ``tenants.services`` and is a version with author and reason; a canary
that ends other than well brings back the content of the version that served before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from tenants import drafts, services
from tenants.audit import Actor, difference, record, snapshot
from tenants.models import Author, PolicyVersion, Pool, Study, StudyState, Trial, TrialState, Tuning, TuningMode
from tenants.versions import Note, because, keep

OPTIMISER = Actor("optimiser", "system")


def tuning_of(pool: Pool) -> Tuning:
    """A pool's tuning; advice where nobody has said anything."""
    return Tuning.objects.filter(pool=pool).first() or Tuning(pool=pool)


def set_tuning(*, actor: Actor, pool: Pool, mode: str, settings: Mapping[str, float] | None = None) -> Tuning:
    """Changes mode and settings. Off ends a canary: the version before it serves again.

    Raises:
        ValidationError: an unknown mode or setting.
    """
    with services.change(actor=actor):
        row = tuning_of(pool)
        before = snapshot(row) if row.pk else None
        row.mode = mode
        if settings is not None:
            row.settings = dict(settings)
        row.full_clean()
        row.save()
        shown = difference(before, snapshot(row))
        record(actor=actor, action="change", instance=row, before=shown[0], after=shown[1])
        if mode == TuningMode.OFF:
            for trial in Trial.objects.filter(pool=pool, state=TrialState.CANARY):
                close(actor=actor, trial=trial, state=TrialState.ROLLED_BACK, reason="tuning was switched off")
            stop_study(actor=actor, pool=pool, reason="tuning was switched off")
    return row


def stop_study(*, actor: Actor, pool: Pool, reason: str) -> bool:
    """Ends the study under way without a result; False where none is."""
    with services.change(actor=actor):
        study = Study.objects.select_for_update().filter(pool=pool, state=StudyState.RUNNING).first()
        if study is None:
            return False
        study.state, study.result, study.ended_at = StudyState.STOPPED, reason[:300], timezone.now()
        study.in_flight, study.engines = [], {}
        study.save(update_fields=["state", "result", "ended_at", "in_flight", "engines"])
        record(actor=actor, action="study", instance=study, after={"state": study.state, "reason": reason[:300]})
    return True


def version_now(pool: Pool) -> PolicyVersion:
    """The version that serves; written now for a pool that is older than its versions."""
    version = PolicyVersion.objects.filter(pool=pool, number=pool.policy_version).first()
    if version is not None:
        return version
    with because(Note("as it was before versions were kept")):
        kept = keep(pool, None, "")
    return kept or PolicyVersion.objects.get(pool=pool, number=pool.policy_version)


def rollback(*, actor: Actor, pool: Pool, number: int, reason: str = "", kind: Author = Author.PERSON) -> Pool:
    """Serves the content of an earlier version again, as a new version. A canary that runs is closed by it.

    Raises:
        ValidationError: there is no such version.
    """
    with services.change(actor=actor):
        version = PolicyVersion.objects.filter(pool=pool, number=number).first()
        if version is None:
            raise ValidationError(f"Pool {pool.slug} has no version {number}.")
        note = Note(reason or f"back to version {number}", kind, restores=number)
        pool = _serve(actor, pool, {name: getattr(version, name) for name in PolicyVersion.content}, note)
        for trial in Trial.objects.filter(pool=pool, state=TrialState.CANARY):
            left = _give_back(actor, trial)
            _end(
                actor, trial, TrialState.ROLLED_BACK, "; ".join((f"{actor.name} went back to version {number}", *left))
            )
    return pool


Window = tuple[datetime, datetime]


def propose(
    *, actor: Actor, pool: Pool, params: Mapping[str, Any], reason: str = "", window: Window | None = None
) -> Trial:
    """A person's choice of parameters for the serving policy, to be started as a trial.

    ``window``: the traffic that it is replayed on; None: the latest.

    Raises:
        ValidationError: the policy has no such parameters, or they are what serves.
    """
    with services.change(actor=actor):
        pool = Pool.objects.select_for_update().get(pk=pool.pk)
        if dict(params) == pool.policy_params:
            raise ValidationError({"params": "These parameters are already active."})
        tried = Pool.objects.get(pk=pool.pk)
        tried.policy_params = dict(params)
        tried.full_clean()
        return _proposed(actor, pool, dict(params), None, reason, window)


def propose_setting(
    *, actor: Actor, pool: Pool, setting: Mapping[str, Any], reason: str = "", window: Window | None = None
) -> Trial:
    """A person's draft of any change of the pool, to be started as a trial.

    ``setting``: what it changes of the pool's policy, modifiers, routing, their parameters and room, and ``objects``
    (:mod:`tenants.drafts`); what it does not name stays. Whether all of it fits is found out by making the change and
    taking it back.

    Raises:
        ValidationError: a value breaks a rule or more would be promised than there is, or nothing would change.
    """
    with transaction.atomic():
        pool = Pool.objects.get(pk=pool.pk)
        whole = {name: getattr(pool, name) for name in PolicyVersion.content}
        drafted = {**whole, **{name: value for name, value in setting.items() if name in whole}}
        drafted["room"] = {**whole["room"], **(drafted["room"] or {})}
        objects = drafts.completed(pool, setting.get("objects", ()))
        if drafted == whole and not objects:
            raise ValidationError("Nothing would change: all of this is already active.")
        kept = {**drafted, **({"objects": objects} if objects else {})}
    before = drafts.bound(pool)
    with drafts.as_if(actor, pool, kept):
        drafts.require_room(pool, before)
    with services.change(actor=actor):
        return _proposed(actor, pool, drafted["policy_params"], kept, reason, window)


def _proposed(
    actor: Actor, pool: Pool, params: dict[str, Any], setting: dict[str, Any] | None, reason: str, window: Window | None
) -> Trial:
    now = timezone.now()
    since, until = window or (now, now)
    trial = Trial.objects.create(
        pool=pool, at=now, study=now, number=0, base=version_now(pool), params=params, setting=setting,
        reason=(reason or f"proposed by {actor.name}")[:300], window_from=since, window_until=until,
    )  # fmt: skip
    record(actor=actor, action="propose", instance=trial, after={**(setting or {"params": params}), "reason": reason})
    return trial


def start_canary(*, actor: Actor, trial: Trial, reason: str, for_s: float | None = None) -> Trial:
    """Serves a proposed trial to the whole pool for one interval, or for ``for_s``.

    Raises:
        ValidationError: it is not proposed (any more), another canary runs, or what it changes was changed since.
    """
    with services.change(actor=actor):
        trial = Trial.objects.select_for_update(of=("self",)).select_related("base", "pool").get(pk=trial.pk)
        pool = Pool.objects.select_for_update().get(pk=trial.pool_id)
        if trial.state != TrialState.PROPOSED:
            raise ValidationError(f"This trial is {trial.state}; only a proposed one can be started.")
        if Trial.objects.filter(pool=pool, state=TrialState.CANARY).exists():
            raise ValidationError("Another canary is running in this pool. Wait until it has ended.")
        if pool.policy_version != trial.base.number:
            raise ValidationError("The pool's policy has changed since this trial, so its result does not apply.")
        note = Note(f"canary: {reason}", _kind_of(actor))
        content = {name: getattr(trial.base, name) for name in PolicyVersion.content}
        setting = dict(trial.setting or {})
        drafts.apply(actor, pool, setting.pop("objects", ()))
        pool = _serve(actor, pool, {**content, "policy_params": trial.params, **setting}, note)
        now = timezone.now()
        trial.version = version_now(pool)
        trial.state, trial.reason = TrialState.CANARY, reason[:300]
        trial.canary_at = trial.watched_at = now
        trial.canary_until = now + timedelta(seconds=for_s or tuning_of(pool).loop.interval_s)
        trial.save()
        record(actor=actor, action="canary", instance=trial, after={"version": trial.version.number})
    return trial


def close(
    *, actor: Actor, trial: Trial, state: TrialState, reason: str, guard: Mapping[str, Any] | None = None
) -> bool:
    """Ends a trial. One that ends otherwise than promoted gives its place back to the version before it, if it still
    has it. False when it had ended already: closing twice changes nothing. No promise that was made meanwhile holds it
    up."""
    with services.change(actor=actor, reporting=True):
        trial = Trial.objects.select_for_update(of=("self",)).select_related("base", "version").get(pk=trial.pk)
        if trial.ended_at is not None:
            return False
        if guard is not None:
            trial.guard = dict(guard)
        if trial.state == TrialState.CANARY and state != TrialState.PROMOTED:
            pool = Pool.objects.select_for_update().get(pk=trial.pool_id)
            if trial.version is not None and pool.policy_version == trial.version.number:
                content = {name: getattr(trial.base, name) for name in PolicyVersion.content}
                note = Note(f"{state.replace('_', ' ')}: {reason}", _kind_of(actor), restores=trial.base.number)
                _serve(actor, pool, content, note)
            reason = "; ".join((reason, *_give_back(actor, trial)))
        _end(actor, trial, state, reason)
    return True


def _kind_of(actor: Actor) -> Author:
    return Author.OPTIMISER if actor.via == "system" else Author.PERSON


def _give_back(actor: Actor, trial: Trial) -> list[str]:
    """What a trial changed of other objects than the pool; says what was left as it is."""
    return drafts.restore(actor, trial.pool, (trial.setting or {}).get("objects", ()))


def _serve(actor: Actor, pool: Pool, content: Mapping[str, Any], note: Note) -> Pool:
    rest = {name: value for name, value in content.items() if name not in ("policy", "policy_params")}
    with because(note):
        return services.set_policy(
            actor=actor, pool=pool, policy=content["policy"], params=content["policy_params"], **rest
        )


def _end(actor: Actor, trial: Trial, state: TrialState, reason: str) -> None:
    before = {"state": trial.state}
    trial.state, trial.reason, trial.ended_at = state, reason[:300], timezone.now()
    trial.save()
    record(actor=actor, action="trial", instance=trial, before=before, after={"state": state, "reason": reason[:300]})
