"""What differs from vLLM's scheduler: how much prompt a step takes, whose, and whom a full cache preempts
(``victims.py``).

:class:`Deciding` stands in front of a class with the interface of vLLM's V1 scheduler and changes nothing of how that
one works: it sets the token budget, the order of ``running`` and ``waiting``, a cap for prompts that give way, and the
priorities by which victims are chosen; then vLLM schedules. All decisions are the core's
(``core/inside_engine/step.py``, ``core/inside_engine/chunking.py``, ``core/policies/relegation.py``), the same that the
simulator asks.

An error of ours never reaches the engine: vLLM's own order and budget hold from then on, the log says so once and a
metric stays up.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from scheduling.core.deadline import prefill_due_s
from scheduling.core.engine.calibration import LoggedStep
from scheduling.core.inside_engine.chunking import prefill_budget, time_left_s, tokens_to_catch_up
from scheduling.core.inside_engine.digest import ARGUMENT, decode, plain
from scheduling.core.inside_engine.step import Begun, hand_out, progressed
from scheduling.core.policies.relegation import may_interrupt, smoothed_rate
from scheduling.core.types import BackendView, PoolView, QueuedRequest
from scheduling.engines.vllm_plugin.learning import Learning, Runner, in_a_thread
from scheduling.engines.vllm_plugin.log import Admitted, Log, Step
from scheduling.engines.vllm_plugin.order import EngineRequest, PolicyOrder
from scheduling.engines.vllm_plugin.plan import Plan, RequestState
from scheduling.engines.vllm_plugin.recording import Recording
from scheduling.engines.vllm_plugin.settings import Settings
from scheduling.engines.vllm_plugin.victims import Victims

if TYPE_CHECKING:  # to a checker any class may stand behind; vLLM is not installed where this is checked

    class _Base:
        max_num_scheduled_tokens: int
        policy: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def schedule(self, *args: Any, **kwargs: Any) -> Any: ...
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any: ...
        def add_request(self, request: Any) -> None: ...
        def shutdown(self) -> None: ...
        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None: ...
        def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int: ...

else:
    _Base = object


TOKEN_SHARE = 0.02  # of the latest step, in what an answer takes for a token

logger = logging.getLogger("vllm.quartermaster")  # below vLLM's own, so that its handlers print it


class Deciding(_Base):
    """In front of vLLM's scheduler in the order of bases."""

    PRIORITY: Any = None  # vLLM's policy under which victims are chosen by ``priority``

    def begin(
        self,
        settings: Settings,
        own_queue: Callable[[], Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        run: Runner = in_a_thread,
    ) -> None:
        """After the scheduler behind has been made. ``own_queue`` makes vLLM's own queue of its own policy."""
        self.qm_settings = settings
        self.qm_log = Log(settings.log_steps, settings.log_every, f"{int(wall() * 1000):x}")
        self.qm_clock, self.qm_wall = clock, wall
        self.qm_learning = Learning(settings.make_step_time(), settings.learn, run)
        self.qm_fits = 0
        self.qm_recording = Recording(settings.record, settings.record_steps) if settings.record else None
        policy = settings.make_policy()
        full = self.max_num_scheduled_tokens
        self.qm_log.limits = {"slots": self.max_num_running_reqs, "step_tokens": full}
        self.qm_most = min(settings.most or full, full)
        self.qm_least = min(settings.least, self.qm_most)
        self.qm_groups = max(1, len(self.kv_cache_config.kv_cache_groups))
        self.qm_engine = BackendView("engine", self.max_num_running_reqs, 0)
        self.qm_view = PoolView({"engine": self.qm_engine})
        self.qm_rate = settings.first_rate
        self.qm_caps: dict[str, int] = {}
        self.qm_current = ""
        self.qm_blocked_at = -1
        self.qm_seq = 0
        self.qm_flight: deque[tuple[Any, Plan]] = deque()
        self.qm_plan: Plan | None = None
        self.qm_ended_s = -inf
        self.qm_busy = False  # the engine had work when the last step ended
        self.qm_own_policy = self.policy
        self.qm_order: PolicyOrder | None = None
        if settings.order:
            self.qm_order = PolicyOrder(
                policy.queue(), self._qm_look, own_queue, self._qm_fail, self.qm_clock, self.qm_view
            )
            self.waiting = self.qm_order
        self.qm_victims: Victims | None = None
        if settings.victims and settings.order and self.PRIORITY is not None:
            self.qm_victims = Victims(self, policy, self._qm_look, self.qm_groups, settings.bucket_tokens)
            self.policy = self.PRIORITY

    def qm_give_up(self, why: str) -> None:
        """vLLM's own order and budget from now on."""
        if self.qm_log.off:
            return
        self.qm_log.off = why
        self.qm_caps = {}
        for request in self.requests.values():
            state = getattr(request, "quartermaster", None)
            if state is not None:
                request.priority = state.priority
        self.policy = self.qm_own_policy
        if self.qm_order is not None:
            self.qm_order.give_up()

    # --- what vLLM calls

    def add_request(self, request: EngineRequest) -> None:
        if not self.qm_log.off:
            try:
                self._qm_meet(request)
            except Exception as error:
                self._qm_fail("add", error)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self.qm_log.off:
            return super().schedule(*args, **kwargs)
        full, began_s = self.max_num_scheduled_tokens, self.qm_clock()
        try:
            plan = self.qm_plan = self._qm_decide(began_s)
            plan.began_s = began_s
            self.max_num_scheduled_tokens = plan.budget
            self.qm_log.counters.own_seconds += self.qm_clock() - began_s
        except Exception as error:
            self._qm_fail("decide", error)
            return super().schedule(*args, **kwargs)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = full
            self.qm_caps = {}
        began_s = self.qm_clock()
        try:
            self._qm_scheduled(plan, output)
            self.qm_log.counters.own_seconds += self.qm_clock() - began_s
        except Exception as error:
            self._qm_fail("account", error)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        try:
            self._qm_ended(scheduler_output)
        except Exception as error:
            self._qm_fail("log", error)
        answer = super().update_from_output(scheduler_output, model_runner_output)
        self.qm_busy = bool(self.running)
        return answer

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Called for each prompt of a step: the place where one that gives way gets less, or nothing."""
        if self.qm_caps:
            cap = self.qm_caps.get(request.request_id)
            if cap is not None and cap < num_new_tokens:
                # Where chunks have to end at a block, a part of one would not.
                num_new_tokens = 0 if self.need_mamba_block_aligned_split else cap
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self.qm_log.counters.victims += 1
        victims = self.qm_victims
        if self.qm_recording is not None and victims is not None and victims.ranked and not self.qm_log.off:
            rows = [(each, self._qm_look(each)) for each in (*self.running, request)]
            self.qm_recording.victim(request.request_id, [(q, each.quartermaster.order) for each, q in rows])
        super()._preempt_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        if self.qm_recording is not None:
            self.qm_recording.close()
        super().shutdown()

    # --- a request

    def _qm_meet(self, request: EngineRequest) -> None:
        """A request that is new to the engine."""
        if getattr(request, "quartermaster", None) is not None or request.request_id in self.requests:
            return
        self.qm_seq += 1
        now = self.qm_clock()
        # It arrived on the wall clock, of the server's other process; what is left of it is the same on ours.
        arrival = now - max(0.0, self.qm_wall() - request.arrival_time)
        prompt, bound = request.num_prompt_tokens, request.max_tokens
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        digest = extra.get(ARGUMENT)
        pace: float | None = None
        queued: QueuedRequest | None = None
        if digest is not None:
            try:
                queued, pace = decode(digest, request.request_id, self.qm_seq, arrival, prompt, bound)
                self.qm_log.counters.digests += 1
            except ValueError as problem:
                self.qm_log.counters.digests_refused += 1
                self.qm_log.refused = str(problem)[:300]
        if queued is None:
            queued = plain(request.request_id, self.qm_seq, arrival, prompt, bound, request.priority)
        due = prefill_due_s(queued, self.qm_settings.pace_s)
        if due == inf:
            pace = inf
        elif pace is None:
            pace = self.qm_settings.pace_s
        state = request.quartermaster = RequestState(queued, pace, due, request.priority)
        state.added_s = now
        if self.qm_victims is not None:
            request.priority = 0  # all alike until ranked: of those vLLM's victim is the last to arrive
        if self.qm_recording is not None:
            self.qm_recording.arrived(queued, pace)

    def _qm_look(self, request: EngineRequest) -> QueuedRequest:
        """What policies are told of it now."""
        state: RequestState | None = getattr(request, "quartermaster", None)
        if state is None:
            self._qm_meet(request)
            state = request.quartermaster
        generated = request.num_output_tokens
        prefilled = min(request.num_computed_tokens, request.num_prompt_tokens)
        state.queued = progressed(state.queued, prefilled, generated)
        return state.queued

    # --- a step

    def _qm_decide(self, now_s: float) -> Plan:
        settings = self.qm_settings
        free_s = self._qm_free_s(now_s)
        decodes, kv_dec = 0, 0
        begun: list[EngineRequest] = []
        decoding: list[EngineRequest] = []
        due_at: list[tuple[float, float, int]] = []  # next token, pace, tokens to catch up within
        for request in self.running:
            if request.is_prefill_chunk:
                begun.append(request)
                continue
            decoding.append(request)
            decodes += 1
            kv_dec += request.num_computed_tokens
            state: RequestState = request.quartermaster
            pace_s = state.pace_s
            if pace_s != inf:
                if state.in_time_by < 0 and request.num_output_tokens:
                    state.in_time_by = tokens_to_catch_up(state.queued, self.qm_ended_s, 0)
                made, by = request.num_output_tokens + request.num_output_placeholders, state.in_time_by
                if by < 0:  # its first token is on its way
                    by = tokens_to_catch_up(state.queued, free_s, 0)
                # chunking.next_token_due_s, without a call for each of hundreds
                due_at.append((state.due_s + pace_s * made, pace_s, max(1, by - made) if by else 0))
        slack = min(due_at)[0] - free_s if due_at else inf
        order = self.qm_order
        waiting = len(self.waiting)
        full = self.max_num_scheduled_tokens
        taken: int = decodes * (1 + self.num_spec_tokens)
        planner = self.qm_learning.planner
        most = max(0, min(self.qm_most, full - taken))
        shortened, late = False, 0

        def time_left(step_s: float, alone_s: float) -> float:
            nonlocal late
            least_s, late, in_time_s = inf, 0, step_s + free_s
            for due_s, pace_s, tokens in due_at:
                if due_s < in_time_s:
                    left_s = time_left_s(due_s - free_s, pace_s, tokens, step_s, alone_s)
                    late += left_s == inf
                else:
                    left_s = due_s - free_s
                if left_s < least_s:
                    least_s = left_s
            return least_s

        def room_at(context: int) -> int:
            nonlocal shortened
            if planner is None or not settings.chunks or not self.scheduler_config.enable_chunked_prefill or not most:
                return most
            tokens = prefill_budget(
                planner, decodes, kv_dec, context, time_left,
                margin=settings.margin, most=most, least=min(self.qm_least, most),
            )  # fmt: skip
            shortened = tokens < most
            return tokens

        wants = False
        if begun and order is not None:
            room, wants = self._qm_share(order, begun, decoding, room_at, now_s, planner, most, decodes, kv_dec)
        else:
            self.qm_current = ""
            room = room_at(begun[0].num_computed_tokens if begun else 0) if begun or waiting else most
            if begun:
                self.running[:] = [*decoding, *begun]
        if order is not None:
            order.arrived = False
            order.new_step()
        budget = min(full, taken + room) if room < most else full
        if self.qm_victims is not None:
            self.qm_victims.rank(decodes, len(begun), room if begun or waiting else 0)
        return Plan(
            now_s, room, max(1, budget), decodes, kv_dec, slack, shortened, waiting,
            [(request, request.num_computed_tokens) for request in begun], wants, late,
            dues=None if self.qm_recording is None else due_at,
        )  # fmt: skip

    def _qm_free_s(self, now_s: float) -> float:
        """When the engine can begin this step: now, or when what it was given before is predicted to end."""
        if not self.qm_flight:
            return now_s
        at = max(self.qm_flight[0][1].began_s, self.qm_ended_s)
        for _, plan in self.qm_flight:
            at += plan.predicted_s or 0.0
        return max(now_s, at)

    def _qm_share(
        self,
        order: PolicyOrder,
        requests: list[EngineRequest],
        decoding: list[EngineRequest],
        room_at: Callable[[int], int],
        now_s: float,
        planner: Any,
        most: int,
        decodes: int,
        kv_dec: int,
    ) -> tuple[int, bool]:
        """Prompts in progress, and whether one of them gives way. Returns the step's prompt tokens, and whether some
        are meant for what waits."""
        begun = [Begun(self._qm_look(r), r.num_computed_tokens, r.num_tokens - r.num_computed_tokens) for r in requests]
        current = next((each for each in begun if each.request.id == self.qm_current), None)
        arrived = order.arrived and self.qm_settings.preempt_prefills
        if current is not None and arrived:
            pause = 0.0 if planner is None else planner.step(most, decodes, kv_dec)
            due = prefill_due_s(current.request, self.qm_settings.pace_s)
            if may_interrupt(due, now_s, current.left, self.qm_rate, pause):
                current = None
        elif current is None and not self.qm_settings.preempt_prefills:
            current = begun[0]
        running = len(self.running) + self.num_waiting_for_streaming_input
        if self.qm_blocked_at >= 0 and (order.arrived or running < self.qm_blocked_at):
            self.qm_blocked_at = -1
        seats = 0 if self.qm_blocked_at >= 0 else self.max_num_active_reqs - running
        blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()

        def fits(request: QueuedRequest) -> bool:
            nonlocal seats, blocks
            need = ceil((request.input_tokens + request.generated) / self.block_size) * self.qm_groups
            if seats <= 0 or need > blocks:
                return False
            seats, blocks = seats - 1, blocks - need
            return True

        queue, round_ = order.ordered() if len(begun) > 1 or current is None else order.as_it_is()
        shares = hand_out(queue, begun, current, fits, room_at, round_, now_s)
        self.qm_current = shares.current
        if shares.waits or len(begun) > 1:
            given = dict(shares.tokens)
            least = 1 if self.lora_config else 0  # a prompt that is left out would let its adapter's place be taken
            self.qm_caps = {each.request.id: max(least, given.get(each.request.id, 0)) for each in begun}
            if shares.waits:
                self.qm_log.counters.gave_way += 1
            turns = {name: at for at, (name, _) in enumerate(shares.tokens)}
            requests = sorted(requests, key=lambda request: turns.get(request.request_id, len(turns)))
        # Decoding requests first: what is left of the budget is for prompts.
        self.running[:] = [*decoding, *requests]
        return shares.room, shares.waits

    def _qm_scheduled(self, plan: Plan, output: Any) -> None:
        """vLLM has scheduled the step."""
        given = output.num_scheduled_tokens
        tokens: list[tuple[str, int]] = []
        now_s = self.qm_clock()
        for request, context in plan.began:
            count = given.get(request.request_id, 0)
            if count:
                plan.prefill += count
                plan.pp += count * (context + count / 2)
                tokens.append((request.request_id, count))
        admitted = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        again = set()
        cached = output.scheduled_cached_reqs
        for name in getattr(cached, "resumed_req_ids", ()):
            again.add(name)
            admitted.append((name, self.requests[name].num_computed_tokens - given[name]))
        for name, context in admitted:
            request = self.requests[name]
            state = request.quartermaster
            count = given[name]
            plan.prefill += count
            plan.pp += count * (context + count / 2)
            tokens.append((name, count))
            if name not in again:
                waited = now_s - state.added_s
                self.qm_log.admitted(Admitted(now_s, name, waited, request.num_prompt_tokens, context))
            self.qm_seq += 1
            state.order, state.bucket, state.standing = self.qm_seq, -1, None
            if request.is_prefill_chunk and not self.qm_current:
                self.qm_current = name
        if plan.wants and not admitted:
            self.qm_blocked_at = len(self.running) + self.num_waiting_for_streaming_input
        planner = self.qm_learning.planner
        if planner is not None:
            plan.predicted_s = planner.step(plan.prefill, plan.decodes, plan.kv_dec, plan.pp)
        if plan.shortened:
            self.qm_log.counters.shortened += 1
        self.qm_flight.append((output, plan))
        if self.qm_recording is not None:
            self.qm_recording.step(self, plan, tokens)

    def _qm_ended(self, output: Any) -> None:
        """The tokens of a step have come."""
        now_s = self.qm_clock()
        while self.qm_flight:
            scheduled, plan = self.qm_flight.popleft()
            if scheduled is output:
                break
        else:
            return
        before, self.qm_ended_s = self.qm_ended_s, now_s
        if not output.total_num_scheduled_tokens:
            return
        seconds = now_s - (before if self.qm_busy and before > -inf else max(before, plan.began_s))
        if seconds <= 0:
            return
        if plan.prefill:
            self.qm_rate = smoothed_rate(self.qm_rate, plan.prefill, seconds)
            self.qm_engine.prefill_per_s = self.qm_rate
        if plan.decodes:
            # A step that compiles kernels takes seconds: none says more than what is believed before the first.
            token_s = min(seconds, self.qm_settings.pace_s)
            known_s = self.qm_view.token_s or token_s
            self.qm_view.token_s = known_s + TOKEN_SHARE * (token_s - known_s)
        learning = self.qm_learning
        learning.saw(LoggedStep(plan.prefill, plan.decodes, plan.kv_dec, plan.pp, seconds))
        if learning.failed is not None:
            failed, learning.failed = learning.failed, None
            raise failed
        if learning.fits != self.qm_fits and learning.planner is not None:
            self.qm_fits = learning.fits
            planner = learning.planner
            self.qm_log.model = {name: getattr(planner, name) for name in ("t0", "a", "b", "c", "e", "knee", "a2")}
            self.qm_log.model["error"] = learning.error or 0.0
        self.qm_log.step(
            Step(
                now_s, seconds, plan.room, plan.prefill, plan.decodes, plan.kv_dec, plan.pp,
                None if plan.slack_s == inf else plan.slack_s, plan.predicted_s, plan.waiting,
                self.kv_cache_manager.usage, plan.late,
            )
        )  # fmt: skip

    def _qm_fail(self, where: str, error: Exception) -> None:
        errors = self.qm_log.counters.errors
        errors[where] = errors.get(where, 0) + 1
        if not self.qm_log.off:
            logger.error(
                "Quartermaster's scheduler failed (%s); vLLM's own order and budget hold until the engine is started "
                "again. Serving goes on.", where, exc_info=error,
            )  # fmt: skip
        self.qm_give_up(f"{where}: {type(error).__name__}: {error}"[:300])
