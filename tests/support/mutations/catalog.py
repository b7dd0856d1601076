"""Formulas broken on purpose, to see that a test notices: ``python -m tests.support.mutations [NAME...] [--sample N]``.

Each mutation is applied to a copy of the tree in a temporary folder, and the tests that are to notice it run there; the
checkout is never touched. A mutant *survives* when they pass: then the exit status is 1, as it is when the text to
replace is not there any more or the tests fail without the mutation. One mutation takes a few seconds; ``--sample``
takes that many, another choice each day, for a pipeline that has no time for all.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("controlplane", "scheduling", "telemetry", "tenants", "tests")
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Mutation:
    """One formula, how it is broken, and the tests that are to notice."""

    name: str
    what: str
    file: str
    old: str  # exactly once in the file
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "the-lab-forgets-who-returns",
        "a simulated pool tells all refused clients the same time",
        "scheduling/simulator/admission.py",
        "                share.told_ms = now_ms + decision.told_ms",
        "                pass",
        ("tests/property/test_lab_admission.py",),
    ),
    Mutation(
        "the-lab-refuses-for-nothing",
        "refused requests of a replay count as if they had not been asked for",
        "scheduling/simulator/result.py",
        "        late=True,",
        "        late=False,",
        ("tests/unit/simulator/test_lab_compare.py",),
    ),
    Mutation(
        "free-on-arrival",
        "what was granted on arrival costs no turns",
        "scheduling/core/scheduler.py",
        "                shares.serve(served)",
        "                pass",
        ("tests/unit/core/test_fair_shares.py",),
    ),
    Mutation(
        "no-headroom",
        "new pools lend all that is idle",
        "scheduling/core/capacity.py",
        "    return min(baselines, (slots + AUTOMATIC_SHARE // 2) // AUTOMATIC_SHARE)",
        "    return 0",
        ("tests/unit/core/test_noisy_neighbour.py",),
    ),
    Mutation(
        "lost-second-free",
        "requests of the second that a killed Redis lost pay nothing (promise 22)",
        "scheduling/state/scripts/shared/buckets.lua",
        "  if level then set_level(ent, level - used, now, b[3], b[4]) end",
        "",
        ("tests/integration/test_state_failures.py",),
    ),
    Mutation(
        "shares-forgotten",
        "a new leader counts shares from zero",
        "scheduling/dispatch/shares.py",
        "        scheduler.resume_shares(kept)",
        "        pass",
        ("tests/integration/test_shares_live.py",),
    ),
    Mutation(
        "night-remembered",
        "what was had while nobody waited costs turns later",
        "scheduling/core/queues/fair.py",
        "            self._last = min(names, key=lambda name: (self._value[name], name))",
        "            pass",
        ("tests/unit/core/test_fair_shares.py",),
    ),
    Mutation(
        "shared-history",
        "all tenants of a pool are predicted from one history",
        "scheduling/core/estimate/chain.py",
        "        return self._tenants.get(facts.tenant, self._stranger).predict(facts)",
        "        return next(iter(self._tenants.values()), self._stranger).predict(facts)",
        ("tests/unit/estimation/test_tenant_histories.py",),
    ),
    Mutation(
        "unfair-window",
        "whoever adds a prompt to a full window of a pool takes the place of the longest known tenant",
        "scheduling/core/estimate/chain.py",
        "            largest = self._prompts.largest()",
        "            largest = next(n for n, t in self._tenants.items() if t.similar)",
        ("tests/unit/estimation/test_tenant_histories.py",),
    ),
    Mutation(
        "unbounded-prior",
        "a tenant's vote on what the pool tells is not clipped",
        "scheduling/core/estimate/prior.py",
        "steps = max(-_LIMIT, min(_LIMIT, round(log(bias) / STEP)))",
        "steps = round(log(bias) / STEP)",
        ("tests/unit/estimation/test_tenant_histories.py",),
    ),
    Mutation(
        "one-salt",
        "all tenants of a pool have the same cache_salt",
        "scheduling/gateway/cache_salt.py",
        'b"cache salt\\0%b\\0%b" % (pool.encode(), tenant.encode())',
        'b"cache salt\\0%b\\0" % pool.encode()',
        ("tests/unit/gateway/test_cache_salt.py",),
    ),
    Mutation(
        "silent-end",
        "a stream that its engine cut ends as if it were complete",
        "scheduling/gateway/relay.py",
        '                raise EngineTrouble(Reason.BACKEND_LOST, "the stream was cut", suspect=True)',
        '                await send({"type": "http.response.body", "body": b""}); return Reason.STOP',
        ("tests/integration/test_broken_engines.py",),
    ),
    Mutation(
        "cancel-before-head",
        "an engine goes on for a client that left before it had answered",
        "scheduling/gateway/upstream.py",
        "        except BaseException:\n            connection.abort()\n            raise\n        return connection",
        "        except Exception:\n            connection.abort()\n            raise\n        return connection",
        ("tests/integration/test_gateway_sdk.py",),
    ),
    Mutation(
        "left-open",
        "the connection to the engine outlives the client that left (promise 4)",
        "scheduling/gateway/stages.py",
        "            self.connection.abort()\n",
        "",
        ("tests/integration/test_gateway_failures.py::test_clients_that_leave_do_not_poison_the_pool_of_connections",),
    ),
    Mutation(
        "no-last-resort",
        "what still runs when a drain is over hears nothing",
        "scheduling/gateway/app.py",
        "            call.interrupt(Reason.SHUTTING_DOWN)",
        "            del call",
        ("tests/integration/test_gateway_failures.py",),
    ),
    Mutation(
        "no-queue-bound",
        "an entitlement's queue has no end (promise 11)",
        "scheduling/core/admission.py",
        "        if view.ent_waiting >= tier.queue_limit:",
        "        if view.ent_waiting >= 10**9:",
        ("tests/unit/core/test_admission.py",),
    ),
    Mutation(
        "all-come-back-at-once",
        "every refused client is told the same time (promise 12)",
        "scheduling/core/admission.py",
        "    return retry_ms, min(MAX_TOLD_MS, told_ms + math.ceil(served_ms * SERVED_PER_RETURN))",
        "    return retry_ms, told_ms",
        ("tests/unit/gateway/test_retry_after.py",),
    ),
    Mutation(
        "health-in-the-crowd",
        "a full server answers health checks as it does others (promise 15)",
        "controlplane/web/connections.py",
        'ALWAYS_OPEN = (b"/healthz", b"/readyz", b"/metrics")',
        "ALWAYS_OPEN: tuple[bytes, ...] = ()",
        ("tests/integration/test_shell_serve.py",),
    ),
    Mutation(
        "waits-beyond-its-time",
        "a request whose time is over stays in the queue (promise 16)",
        "scheduling/core/scheduler.py",
        "                self.withdraw(request_id)\n                over.append(request)",
        "                pass",
        ("tests/unit/core/test_scheduler.py::test_an_expired_request_is_never_granted",),
    ),
    Mutation(
        "begins-after-its-time",
        "a grant that is heard after the deadline starts its request (promise 16)",
        "scheduling/gateway/lifecycle.py",
        "            call.interrupt(Reason.QUEUE_TIMEOUT)\n            await asyncio.sleep(0)",
        "            pass",
        ("tests/integration/test_waiting_deadlines.py::test_a_grant_that_is_heard_after_the_deadline_starts_nothing",),
    ),
    Mutation(
        "retries-without-end",
        "a retry is granted whatever was retried before (promise 17)",
        "scheduling/gateway/retries.py",
        "        if self._balance < 1.0:",
        "        if self._balance < -1e9:",
        ("tests/unit/gateway/test_gateway_parts.py",),
    ),
    Mutation(
        "useless-advice",
        "clients are told to come back where that cannot help (promise 18)",
        "scheduling/gateway/errors.py",
        "    elif not ENDINGS[reason].retry or refusal.retry_s is None:",
        "    elif refusal.retry_s == -1:",
        ("tests/unit/gateway/test_gateway_answers.py::test_waiting_that_cannot_help_is_not_advised",),
    ),
    Mutation(
        "waits-for-redis",
        "a call waits while Redis is known to be down (promise 20)",
        "scheduling/state/resp.py",
        '            raise StateUnavailable("Redis is not reachable")\n        return wire.send(pack(words))',
        "            return asyncio.get_running_loop().create_future()\n        return wire.send(pack(words))",
        (
            "tests/integration/test_state_failures.py::"
            "test_a_killed_server_fails_calls_at_once_and_comes_back_without_a_restart",
        ),
    ),
    Mutation(
        "failed-save-unnoticed",
        "a Redis that takes no writes since its save failed is taken for a fault of one call (promise 20)",
        "scheduling/state/resp.py",
        '_REFUSING = frozenset({"OOM", "MISCONF", "READONLY", "NOREPLICAS"})',
        '_REFUSING = frozenset({"OOM", "READONLY", "NOREPLICAS"})',
        (
            "tests/integration/test_redis_full_or_moved.py::"
            "test_a_redis_that_takes_no_writes_is_logged_once_and_serves_again_by_itself",
        ),
    ),
    Mutation(
        "calls-without-limit",
        "a call to a frozen Redis has no time limit (promise 21)",
        "scheduling/state/resp.py",
        "        limit = sent + self._timeout\n        due = min(limit, max(sent, self._heard) + self._silence)",
        "        limit = due = sent + 1e6",
        (
            "tests/integration/test_state_failures.py::"
            "test_a_frozen_server_fails_calls_within_their_limit_and_the_rest_at_once",
        ),
    ),
    Mutation(
        "no-second-replica",
        "what its replica failed before a byte is not tried elsewhere (promise 27)",
        "scheduling/gateway/lifecycle.py",
        "        if trouble.refused:\n            return submitted.attempt < MAX_REFUSED",
        "        return False\n        if trouble.refused:\n            return submitted.attempt < MAX_REFUSED",
        ("tests/integration/test_gateway_failures.py::test_a_replica_that_is_gone_is_left_for_another_and_reported",),
    ),
    Mutation(
        "secret-as-it-is",
        "keys are stored as they are (promise 31)",
        "tenants/keys.py",
        '    return hashlib.sha256(secret.encode("ascii")).hexdigest()',
        "    return secret",
        ("tests/unit/tenants/test_tenants_services.py",),
    ),
    Mutation(
        "every-tenant-in-sight",
        "a member sees what belongs to other tenants (promise 32)",
        "tenants/access.py",
        "        return model._default_manager.filter(_VISIBLE_TO_MEMBERS[model](self.tenant_ids))",
        "        return model._default_manager.all()",
        ("tests/unit/tenants/test_tenants_access_matrix.py",),
    ),
    Mutation(
        "prompt-in-the-log",
        "what is sent to an engine is logged (promise 33)",
        "scheduling/gateway/lifecycle.py",
        "        reason = await self._run_somewhere(submitted, body)\n",
        '        __import__("logging").getLogger("quartermaster").warning("%s", body)\n'
        "        reason = await self._run_somewhere(submitted, body)\n",
        ("tests/integration/test_gateway_canaries.py",),
    ),
    Mutation(
        "unknown-fields-pass",
        "a field that nobody knows is dropped in silence (promise 35)",
        "scheduling/gateway/openai_types.py",
        "class Said(Struct, forbid_unknown_fields=True):",
        "class Said(Struct):",
        ("tests/unit/gateway/test_gateway_prepare.py::test_an_unknown_field_is_refused_by_its_path_and_taken_as_null",),
    ),
    Mutation(
        "forgets-the-catalog",
        "without the database no key is known any more (promise 23)",
        "scheduling/catalog.py",
        "        except Exception as exc:\n            if not self._failing:",
        "        except Exception as exc:\n            self._current = None\n            if not self._failing:",
        (
            "tests/unit/gateway/test_gateway_parts.py::test_without_a_database_the_old_catalog_stays_and_the_log_says_so_once",
        ),
    ),
    Mutation(
        "deaf-after-an-outage",
        "once the database was away, nobody looks at it again, so that a revoked key lives on (promise 23)",
        "scheduling/catalog.py",
        "            self._wake.clear()\n            await self._look()",
        "            self._wake.clear()\n            if not self._failing:\n                await self._look()",
        (
            "tests/integration/test_gateway_failures.py::"
            "test_a_key_that_is_revoked_while_the_database_is_away_stops_when_it_is_back",
        ),
    ),
    Mutation(
        "head-without-end",
        "a request's head may take as long as it likes (promise 34)",
        "controlplane/web/serve.py",
        "                limit_s = head_timeout_s if self._place is Place.FREE else min(head_timeout_s, KEPT_HEAD_S)",
        "                limit_s = 1e6",
        ("tests/integration/test_shell_serve.py::test_drips_do_not_buy_time",),
    ),
    Mutation(
        "parts-without-end",
        "a body may be of any number of objects, so that one request holds up every stream (promise 34)",
        "scheduling/gateway/prepare.py",
        "MAX_PARTS = 65_536",
        "MAX_PARTS = 2**32",
        ("tests/integration/test_hostile_bodies.py",),
    ),
    Mutation(
        "anybody-is-a-proxy",
        "whoever says so comes from another address (promise 36)",
        "controlplane/asgi.py",
        "    return ProxyHeadersMiddleware(app, proxies) if proxies else app",
        '    return ProxyHeadersMiddleware(app, "*")',
        ("tests/integration/test_passwords.py::test_who_is_no_proxy_cannot_choose_an_address[one]",),
    ),
    Mutation(
        "clients-headers-travel",
        "what a client wrote into its head reaches the engine (promise 36)",
        "scheduling/gateway/app.py",
        "        call = Call(request_id or new_request_id(time.time()), scope, receive, send, loop)",
        '        mine = dict(scope["headers"]).get(b"x-request-id", b"").decode() or new_request_id(time.time())\n'
        "        call = Call(mine, scope, receive, send, loop)",
        ("tests/integration/test_gateway_limits.py::test_forged_internal_headers_do_not_travel",),
    ),
    Mutation(
        "all-screens-at-once",
        "a change wakes all dashboards in one turn of the loop (promise 29)",
        "telemetry/feed/hub.py",
        "            self._wake(1)",
        "            self._wake(len(self._due))",
        ("tests/integration/test_many_dashboards.py",),
    ),
    Mutation(
        "open-event",
        "an error's frame is not ended, so that what follows becomes part of it (promise 37)",
        "scheduling/gateway/errors.py",
        '    return b"data: " + error_bytes(reason, **fields) + b"\\n\\n"',
        '    return b"data: " + error_bytes(reason, **fields) + b"\\n"',
        ("tests/unit/gateway/test_gateway_answers.py::test_an_error_event_is_one_frame_whatever_it_says",),
    ),
    Mutation(
        "any-port",
        "pages of other ports of this host may open WebSockets (promise 38)",
        "controlplane/web/websockets.py",
        '    return asks == _parts(f"{scheme}://{name}")',
        '    return asks[:2] == (_parts(f"{scheme}://{name}") or ("", "", 0))[:2]',
        ("tests/integration/test_websocket_limits.py",),
    ),
    Mutation(
        "inline-scripts",
        "pages may run scripts that stand in them (promise 39)",
        "controlplane/web/security.py",
        "\"default-src 'self'; script-src 'self'; style-src",
        "\"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src",
        ("tests/integration/test_shell_pages.py::test_a_policy_without_inline_scripts_covers_our_pages",),
    ),
    Mutation(
        "any-host",
        "a scaling webhook goes to whatever host is named (promise 40)",
        "tenants/validators.py",
        "    if parts.netloc.lower() not in allowed and parts.hostname not in allowed:",
        "    if not parts.netloc:",
        ("tests/integration/test_scaling_drivers.py",),
    ),
    Mutation(
        "debt-sign",
        "a debt lowers the weight instead of raising it (token pools, eq. 1)",
        "scheduling/core/entitlement.py",
        "swing = coefficients.debt * debt",
        "swing = -coefficients.debt * debt",
        ("tests/unit/core/test_entitlement.py", "tests/property/test_entitlement_laws.py"),
    ),
    Mutation(
        "alpha",
        "alpha counts in seconds instead of milliseconds per token (QoServe, eq. 4)",
        "scheduling/core/order/hybrid.py",
        "return first + alpha_ms / 1000.0 * (request.input_tokens - request.prefilled)",
        "return first + alpha_ms * (request.input_tokens - request.prefilled)",
        ("tests/unit/core/test_order_policies.py",),
    ),
    Mutation(
        "bucket-edge",
        "a Gittins index is refreshed one token after its bucket's edge (SageSched 3.3)",
        "scheduling/core/order/gittins.py",
        "request.generated // self.bucket_tokens * self.bucket_tokens",
        "(request.generated - 1) // self.bucket_tokens * self.bucket_tokens",
        ("tests/unit/core/test_order_policies.py",),
    ),
    Mutation(
        "deadline",
        "the n-th token is due n paces after the first one's deadline instead of n - 1 (QoServe, eq. 2)",
        "scheduling/core/deadline.py",
        "first + (n - 1) * slo.tbt_s",
        "first + n * slo.tbt_s",
        ("tests/unit/simulator/test_simulator_parts.py", "tests/unit/core/test_slo.py"),
    ),
    Mutation(
        "hinted-size",
        "a request takes the turn of one whose prompt is shorter (core/queues/turns.py)",
        "scheduling/core/queues/turns.py",
        "request.input_tokens <= than.input_tokens",
        "request.input_tokens >= 0",
        ("tests/contract/test_hints.py",),
    ),
    Mutation(
        "hinted-deadline",
        "a client's tighter target stands in place of its contract's",
        "scheduling/gateway/estimates.py",
        "None if slo.ttft_s is None else first_token_deadline_s(arrival_s, slo),",
        "None if slo.ttft_s is None else arrival_s + min(slo.ttft_s, (hints or {}).get(TTFT_HINT, slo.ttft_s)),",
        ("tests/contract/test_hints.py",),
    ),
    Mutation(
        "merge-utility",
        "neighbours far apart are merged first (EWSJF, eq. 3)",
        "scheduling/core/partition.py",
        "(left.density + right.density) / (abs(right.mean - left.mean) + EPSILON)",
        "(left.density + right.density) * (abs(right.mean - left.mean) + EPSILON)",
        ("tests/property/test_partition.py",),
    ),
    Mutation(
        "foreign-answer",
        "whatever an answer calls itself, it is taken for the answer to the request",
        "scheduling/gateway/engine_connection.py",
        "return not self._used and _OURS.search(answer_id) is None",
        "return True",
        ("tests/integration/test_broken_engines.py::test_an_engine_that_names_no_answers_gets_a_connection_for_each",),
    ),
    Mutation(
        "usage-bound",
        "an engine may report more output than was asked for",
        "scheduling/gateway/answers.py",
        "<= usage_sent.completion_tokens <= asked.output_bound",
        "<= usage_sent.completion_tokens",
        ("tests/integration/test_broken_engines.py::test_a_usage_that_cannot_be_true_is_replaced_by_our_own_count",),
    ),
    Mutation(
        "clocks-that-decide",
        "deadlines of waiting requests are those of their gateway's clock",
        "scheduling/state/codec.py",
        "        by_s = taken_ms / 1000 - sent_s",
        "        by_s = 0.0",
        (
            "tests/integration/test_clocks.py::test_two_gateways_with_different_clocks_are_served_in_the_order_of_arrival",
        ),
    ),
    Mutation(
        "wall-clock-latency",
        "a request's times jump with the wall clock of its gateway",
        "scheduling/gateway/stages.py",
        "        return self.received_s + (self.loop.time() - self.started_loop)",
        "        return time.time()",
        ("tests/integration/test_clocks.py::test_a_step_of_the_wall_clock_leaves_the_times_of_a_request_as_they_are",),
    ),
)


def copy_tree(to: Path) -> None:
    """What the tests need, without what they write."""
    for name in COPIED:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name in ("pyproject.toml", "manage.py"):
        shutil.copy2(ROOT / name, to / name)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """pytest's exit status and the tests that failed."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    done = subprocess.run(
        command, cwd=tree, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, ", ".join(failed) or done.stdout[-400:]


def apply(tree: Path, mutation: Mutation) -> str:
    """Breaks the formula; the file's text as it was. Raises LookupError when the formula is not there exactly once."""
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise LookupError(f"{mutation.file} has {mutation.old!r} {text.count(mutation.old)} times, expected once")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(m.name for m in MUTATIONS)}")
    parser.add_argument("--sample", type=int, default=0, help="only so many, another choice each day")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not options.names or mutation.name in options.names]
    if options.sample:
        chosen = random.Random(datetime.date.today().isoformat()).sample(chosen, min(options.sample, len(chosen)))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        sound, output = run_tests(tree, tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests)))
        if sound != 0:
            print(f"the tests fail without any mutation: {output}")
            return 1
        for mutation in chosen:
            started = time.monotonic()
            text = apply(tree, mutation)
            status, output = run_tests(tree, mutation.tests)
            (tree / mutation.file).write_text(text, encoding="utf-8")
            caught = status == 1
            survived += not caught
            verdict, spent = "caught" if caught else "SURVIVED", time.monotonic() - started
            print(f"{mutation.name:14} {verdict:9} {spent:4.1f} s  {mutation.what}")
            print(f"{'':14} {mutation.file}: {mutation.new}\n{'':14} {output if caught else ''}".rstrip(), flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
