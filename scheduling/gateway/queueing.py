"""From shared state's answer to a grant: a request that was not granted at once waits for its pool's leader."""

from __future__ import annotations

import asyncio

from scheduling.core.outcomes import Reason
from scheduling.gateway.conclusion import Conclusion
from scheduling.gateway.errors import Refusal
from scheduling.gateway.stages import NEVER, Submitted, ended_by_others
from scheduling.state.types import Admission, AdmissionStatus


class GrantWaiter:
    """Waits for the grants of one gateway's requests."""

    def __init__(self, conclusion: Conclusion) -> None:
        self._conclusion = conclusion

    async def granted(self, submitted: Submitted, admission: Admission, left_s: float | None = None) -> None:
        """Notes what shared state answered, and returns once the attempt is granted. Raises :class:`Refusal` where it
        will not be. ``left_s``: when the attempt before it left its replica [epoch s]; None: there was none."""
        call = submitted.call
        if left_s is not None and submitted.queued_s is not None and submitted.granted_s is not None:
            submitted.ran_before_s += max(0.0, left_s - submitted.granted_s)
        submitted.attempt = admission.attempt
        submitted.seq = admission.seq
        submitted.prefill = admission.prefill
        if admission.status is AdmissionStatus.GRANTED:
            submitted.backend = admission.backend
            submitted.granted_s = call.now_s()
            submitted.admitted = True
        elif admission.status is AdmissionStatus.QUEUED:
            submitted.backend = ""
            submitted.granted_s = None  # of a replica that failed it
            submitted.admitted = True
            submitted.queued_s = submitted.queued_s or call.now_s()
            if admission.wakes_s is not None and admission.wakes_s > submitted.access.entitlement.tier.max_wait_s:
                # The leader has heard of it and wakes a replica; one that would wait in vain is told when to return.
                raise Refusal(Reason.WAKING, retry_s=admission.wakes_s, wakes_s=admission.wakes_s)
            await self._wait(submitted)
        else:
            raise self._conclusion.plain_refusal(call, ended_by_others(admission.reason))

    async def _wait(self, submitted: Submitted) -> None:
        """Waits until the leader grants the attempt; the tier's longest wait interrupts it."""
        call = submitted.call
        since = call.started_loop if submitted.waits_from is None else submitted.waits_from
        call.limit(Reason.QUEUE_TIMEOUT, since + submitted.access.entitlement.tier.max_wait_s)
        while (notice := submitted.notice) is None or notice.attempt != submitted.attempt:
            submitted.waiter = call.loop.create_future()
            try:
                await submitted.waiter
            finally:
                submitted.waiter = None
        if call.loop.time() >= call.deadline:  # granted in time, heard too late: it must not begin any more
            call.interrupt(Reason.QUEUE_TIMEOUT)
            await asyncio.sleep(0)
        call.limit(Reason.DEADLINE, NEVER)
        submitted.backend, submitted.policy, submitted.why_there = notice.backend, notice.policy, notice.why
        submitted.prefill = notice.prefill
        submitted.granted_s = call.now_s()
