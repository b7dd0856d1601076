"""docs/reference/bounds.md: what strangers, tenants and engines can send, count and report, with the bound of each.

    python -m tests.support.bounds > docs/reference/bounds.md

Figures are read from the code. Every row has its test.
"""

# ruff: noqa: E501 a row of a table is a line
from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from django.db import models
from rest_framework import serializers


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    bound: str  # module:NAME of a constant, or the setting's name, or words
    then: str
    test: str  # path::function


STRANGERS = (
    Row("body on `/v1`", "`MAX_BODY_BYTES`", "413", "integration/test_gateway_limits.py::test_a_declared_size_over_the_limit_is_refused_unread"),
    Row("body of a page or of the management API", "2 MiB", "413", "integration/test_shell_bodies.py::test_a_body_over_the_limit_never_reaches_the_site"),
    Row("bodies of pages and of the management API that are in one process, beyond 64 KiB of each; of one address a quarter [bytes]", "controlplane.web.body_limits:ROOM_BYTES", "503", "integration/test_shell_bodies.py::test_bodies_that_arrive_slowly_have_so_much_room_and_small_ones_always_fit"),
    Row("request head, in bytes and time", "`MAX_HEADER_BYTES`, `HEADER_TIMEOUT_S`", "431, 408", "integration/test_shell_serve.py::test_a_head_that_does_not_end_in_time_is_refused"),
    Row("chunk sizes, extensions and trailers [bytes]", "controlplane.web.protocol:FRAMING_BYTES", "431", "integration/test_connection_limits.py::test_what_frames_a_body_is_bounded"),
    Row("body that no handler reads [bytes]", "controlplane.web.protocol:UNWANTED_BYTES", "connection closed", "integration/test_connection_limits.py::test_garbage_behind_a_request_is_bounded"),
    Row("answer that its client does not read [bytes in the process]", "controlplane.web.protocol:UNREAD_BYTES", "connection closed", "integration/test_gateway_slept.py::test_readers_that_do_not_read_are_held_in_little_memory"),
    Row("message of a WebSocket [bytes]", "controlplane.web.websockets:MESSAGE_BYTES", "closed with 1009", "integration/test_websocket_limits.py::test_an_open_socket_may_send_little"),
    Row("wrong passwords of one user name from one address, in five minutes", "controlplane.web.login_attempts:FAILURES", "429", "integration/test_passwords.py::test_of_a_hundred_guesses_at_the_same_moment_ten_are_checked"),
    Row("right passwords of one user name, in five minutes", "controlplane.web.login_attempts:RIGHT", "429", "integration/test_passwords.py::test_who_signs_in_again_and_again_is_refused_before_anything_is_hashed_and_others_are_not"),
    Row("wrong second-factor codes of one account in an hour, from all addresses", "controlplane.signin.second_factor:WRONG_CODES", "429", "unit/controlplane/test_second_factor.py::test_wrong_codes_are_counted_for_the_account_whatever_address_they_come_from"),
    Row("time for the second-factor code after the password [s]", "controlplane.signin.second_factor:WAITED_S", "the login starts again", "unit/controlplane/test_second_factor.py::test_a_code_alone_or_after_a_step_that_is_over_opens_nothing"),
    Row("passkeys of one account", "tenants.passkeys:MOST_PASSKEYS", "400", "unit/controlplane/test_passkeys.py::test_a_passkey_of_ten_is_the_last"),
    Row("answer of a passkey, as JSON [characters]", "tenants.passkeys:ANSWER_LETTERS", "refused like a wrong answer", "unit/controlplane/test_passkeys.py::test_what_this_users_passkey_did_not_sign_for_this_site_opens_nothing"),
    Row("time for the answer of a passkey [s]", "controlplane.signin.challenges:WAITED_S", "refused like a wrong answer", "unit/controlplane/test_passkeys.py::test_an_answer_that_comes_too_late_opens_nothing"),
    Row("answer of a SAML provider [characters]", "controlplane.signin.saml:ANSWER_LETTERS", "400", "unit/controlplane/test_saml.py::test_an_answer_that_is_too_long_is_not_kept"),
    Row("SAML answers from one address in five minutes", "controlplane.signin.saml:BEGUN", "429", "unit/controlplane/test_saml.py::test_answers_of_one_address_are_bounded"),
    Row("API key [characters]", "scheduling.gateway.entry.auth:MAX_KEY_CHARS", "401", "unit/gateway/test_gateway_prepare.py::test_what_cannot_be_a_key_is_not_looked_up"),
    Row("`Idempotency-Key` [characters]", "scheduling.gateway.entry.idempotency:MAX_KEY_CHARS", "400", "integration/test_gateway_idempotency.py::test_a_key_that_is_none_is_said_to_be_so"),
)  # fmt: skip
TENANTS = (
    Row("strings, objects and arrays in a body", "scheduling.gateway.bodies.prepare:MAX_PARTS", "400", "integration/test_hostile_bodies.py::test_no_body_holds_up_the_event_loop"),
    Row("values with commas between them in a body, such as token ids", "scheduling.gateway.bodies.prepare:MAX_VALUES", "400", "integration/test_hostile_bodies.py::test_no_body_holds_up_the_event_loop"),
    Row("messages of a request", "scheduling.gateway.bodies.openai_types:MAX_MESSAGES", "400", "unit/gateway/test_request_bounds.py::test_as_many_as_the_bound_are_taken_and_one_more_is_refused"),
    Row("answers of a request (`n` times its prompts)", "scheduling.gateway.bodies.openai_types:MAX_CHOICES", "400", "integration/test_gateway_several.py::test_what_is_too_many_or_mixed_is_refused"),
    Row("tools of a request", "scheduling.gateway.bodies.openai_types:MAX_TOOLS", "400", "unit/gateway/test_request_bounds.py::test_as_many_as_the_bound_are_taken_and_one_more_is_refused"),
    Row("images, audio and video of a request", "scheduling.gateway.bodies.media:MAX_MEDIA", "400", "unit/gateway/test_request_bounds.py::test_one_picture_more_than_the_bound_is_refused"),
    Row("pixels of the images of a request; one whose size cannot be read counts as 178,956,970", "scheduling.gateway.bodies.media:MAX_PIXELS", "400", "unit/gateway/test_request_bounds.py::test_the_images_of_a_request_have_so_many_pixels_at_most"),
    Row("grammar or schema of a request, its counted repetitions written out [bytes]", "scheduling.core.types:MAX_GRAMMAR_BYTES", "400", "integration/test_gateway_grammar.py::test_what_is_larger_than_the_tier_allows_is_refused_by_its_field_and_the_limit"),
    Row("objects and arrays of a schema within each other", "scheduling.gateway.bodies.grammar:MOST_LEVELS", "400", "integration/test_gateway_grammar.py::test_a_schema_has_so_many_levels_at_most_for_engines_compile_them_by_their_cube"),
    Row("what each two properties of an object count as in a schema that bounds their number [bytes]", "scheduling.gateway.bodies.grammar:PAIR_BYTES", "400 beyond the tier's", "integration/test_gateway_grammar.py::test_an_object_that_bounds_the_number_of_its_properties_counts_as_every_two_of_them"),
    Row("requests in flight", "the concurrency of its entitlements", "429 `concurrency`", "integration/test_key_and_user_limits.py::test_requests_in_flight_are_bounded_and_free_the_place_when_they_end"),
    Row("spending in a month", "its hard budgets, plus the requests in flight", "429 `budget_exceeded`", "integration/test_budgets.py::test_a_hard_budget_is_overrun_by_at_most_what_is_in_flight"),
    Row("API keys of a tenant that work", "tenants.services:MOST_KEYS", "400", "unit/tenants/test_accounts.py::test_one_tenant_has_a_bounded_number_of_keys_and_rotates_the_last_all_the_same"),
    Row("API keys of a tenant that were revoked or have expired", "tenants.services:MOST_ENDED", "the oldest is removed; the audit log and the ledger keep it", "unit/tenants/test_accounts.py::test_keys_that_work_no_more_are_listed_in_a_bounded_number_and_audited_for_ever"),
    Row("ledger rows of wrong requests of all keys of a tenant, in those of one key", "scheduling.gateway.entry.storms:OF_A_TENANT", "held back for 0.5 s, counted without a row", "integration/test_storming_key.py::test_a_tenant_that_takes_its_keys_by_turns_leaves_few_ledger_rows_too"),
    Row("ledger rows of one key's wrong requests, a second, once there were 200", "scheduling.gateway.entry.storms:STORM_PER_S", "held back for 0.5 s, counted without a row", "integration/test_storming_key.py::test_wrong_requests_without_end_leave_few_ledger_rows_and_each_is_told_what_is_wrong"),
    Row("keys whose clients' time limits one web process remembers", "scheduling.gateway.estimate.client_timeouts:KEYS_KEPT", "the one whose clients have not left for longest is forgotten", "unit/gateway/test_learned_timeouts.py::test_the_keys_that_are_remembered_are_bounded"),
    Row("what one member makes and changes over the management API in a minute; ending keys, tokens and sessions has no limit", "tenants.audit:WRITES_A_MINUTE", "429", "unit/tenants/test_veiled_numbers.py::test_a_member_makes_and_changes_so_much_in_a_minute_and_ends_what_there_is_all_the_same"),
    Row("saved views of one person", "telemetry.api.views:MOST_VIEWS", "400", "integration/test_catalog_concurrency.py::test_views_that_are_saved_at_the_same_moment_are_no_more_than_one_person_may_have"),
    Row("files that one user is being sent by one process (usage, statements, requests)", "telemetry.api.sent_files:AT_ONCE", "429", "unit/telemetry/test_sent_files.py::test_one_user_is_sent_few_files_at_once_and_others_are_not_concerned"),
    Row("file of usage, statements or requests [bytes]", "telemetry.api.sent_files:MAX_BYTES", "400", "unit/telemetry/test_sent_files.py::test_a_file_that_grows_too_large_is_refused_and_leaves_nothing"),
    Row("exports of the audit log by one user in a minute, each of which is an entry", "tenants.audit:READS_A_MINUTE", "429", "unit/tenants/test_veiled_numbers.py::test_a_member_fills_the_audit_log_with_no_exports"),
    Row("thresholds of a budget", "scheduling.core.ledger.money:MAX_ALERTS", "400", "unit/telemetry/test_statements.py::test_thresholds_that_are_none_are_refused"),
    Row("lines of a statement in one JSON answer", "telemetry.api.statements:MAX_LINES", "400", "unit/telemetry/test_statements.py::test_a_statement_with_more_lines_than_json_has_says_to_take_csv"),
    Row("files, batches and lines", "the settings in [limits.md](limits.md#files-and-batches)", "413, 429", "integration/test_batches.py::test_what_a_client_sends_is_bounded_and_refused_with_its_reason"),
    Row("batches of a tenant that ended and are listed", "controlplane.batches.services:MOST_ENDED", "with a new one the oldest are removed; their files stay", "unit/controlplane/test_batch_services.py::test_who_makes_and_cancels_batches_for_ever_leaves_a_bounded_list"),
    Row("prompts remembered per pool", "scheduling.state.history:KEPT", "one of the tenant with the most is dropped", "unit/gateway/test_pool_forecasts.py::test_embeddings_of_known_prompts_are_bounded"),
    Row("tenants with length predictors per pool", "scheduling.core.estimate.chain:TENANTS_KEPT", "the tenant unused for longest is dropped", "unit/estimation/test_tenant_histories.py::test_tenants_are_bounded_and_the_longest_unheard_of_goes_with_all_it_held"),
    Row("replicas of a pool that a namespace of the cluster names (`spec.replicas`)", "controlplane.kubernetes.replicas:MOST_REPLICAS", "left out, and said in the condition", "unit/kubernetes/test_discovery.py::test_of_more_replicas_than_a_pool_takes_the_rest_is_left_out_and_those_that_are_in_stay"),
    Row("remembered prompt positions for placement, in each of two generations", "scheduling.core.placement.rule:POINTS_KEPT", "the older generation is dropped", "unit/gateway/test_prefix.py::test_memory_is_bounded_and_keeps_what_was_used_last"),
    Row("ledger entries kept while the database is unavailable", "scheduling.state.types:LEDGER_KEPT", "the oldest are dropped", "integration/test_lost_state.py::test_what_is_kept_is_bounded"),
)  # fmt: skip
ENGINES = (
    Row("input or output tokens of a request", "scheduling.core.ledger.record:MAX_TOKENS", "the gateway's own count is used", "integration/test_broken_engines.py::test_absurd_usage_reaches_neither_ledger_nor_hours_nor_quotas"),
    Row("cached tokens of a request", "its input tokens", "counted as none", "unit/telemetry/test_statements.py::test_cached_tokens_beyond_the_input_are_not_believed"),
    Row("usage of an answer", "what was requested and received", "the gateway's own count is used", "integration/test_broken_engines.py::test_a_usage_that_cannot_be_true_is_replaced_by_our_own_count"),
    Row("frame of a stream [bytes]", "scheduling.gateway.answers.sse:MAX_FRAME_BYTES", "the request fails", "unit/gateway/test_gateway_sse.py::test_a_frame_without_end_is_given_up"),
    Row("stream, beside 16 KiB for each frame that may come of what was asked for [bytes]", "scheduling.gateway.answers.sse:MAX_STREAM_BYTES", "the request fails", "unit/gateway/test_gateway_sse.py::test_a_stream_is_as_long_as_a_whole_answer_and_so_much_for_each_frame"),
    Row("events of a stream that come before its answer [bytes]", "scheduling.gateway.answers.named_events:MAX_EARLY_BYTES", "the request fails", "unit/gateway/test_named_events.py::test_what_an_engine_says_before_its_answer_is_kept_in_bounded_memory"),
    Row("bytes of a whole answer that are read between two other things of a process", "scheduling.gateway.answers.long_answers:LONG", "read by a process beside", "unit/gateway/test_long_answers.py::test_this_process_spends_little_on_an_answer_that_is_costly_to_read"),
    Row("time for reading one whole answer [s]", "scheduling.gateway.answers.long_answers:LONGEST_S", "the request fails", "unit/gateway/test_long_answers.py::test_an_answer_that_takes_too_long_is_none"),
    Row("memory for reading one whole answer [bytes]", "scheduling.gateway.answers.long_answers:MEMORY", "the request fails", "unit/gateway/test_long_answers.py::test_an_answer_that_takes_too_much_memory_is_none_and_the_next_is_read"),
    Row("calls of tools in an answer, or in a piece of one", "scheduling.gateway.answers.answer_types:MAX_CALLS", "the request fails", "unit/gateway/test_costly_answers.py::test_as_many_calls_of_tools_as_the_bound_are_counted_and_one_more_is_broken"),
    Row("lines of an event", "scheduling.gateway.answers.sse:MAX_LINES", "the request fails", "unit/gateway/test_gateway_sse.py::test_an_event_has_few_lines"),
    Row("error about an input whose words are read [bytes]", "scheduling.gateway.answers.answer_types:MAX_ERROR_BYTES", "the client is told that the engine refused it", "unit/gateway/test_costly_answers.py::test_of_an_error_that_is_very_long_nothing_is_read"),
    Row("fields of an event, or of the object in it, that none has [bytes]", "scheduling.gateway.answers.answer_types:UNKNOWN_BYTES", "the request fails", "unit/gateway/test_costly_answers.py::test_names_that_no_answer_has_do_not_hold_up_a_stream"),
    Row("head of an answer [bytes]", "scheduling.gateway.engine.engine_connection:MAX_HEAD_BYTES", "the request fails", "integration/test_broken_engines.py::test_whatever_an_engine_sends_ends_explicitly_and_the_next_request_is_served"),
    Row("bytes that frame each byte of a stream, beside a head's", "scheduling.gateway.engine.engine_connection:STREAM_FRAMING", "the request fails", "integration/test_broken_engines.py::test_whatever_an_engine_sends_ends_explicitly_and_the_next_request_is_served"),
    Row("answer to a control call [bytes]", "scheduling.engines.client:MAX_BODY_BYTES", "the call fails", "unit/gateway/test_request_bounds.py::test_a_control_answer_longer_than_the_bound_is_not_read"),
    Row("head of an answer to a control call, with what comes before it (103) [bytes]", "scheduling.engines.reach:HEAD_BYTES", "the call fails", "integration/test_endless_control_answers.py::test_an_answer_without_end_is_given_up_by_what_came_and_not_by_time"),
    Row("pieces of an answer to a control call, beside one for each 256 bytes", "scheduling.engines.client:SMALL_PIECES", "the call fails", "integration/test_endless_control_answers.py::test_an_answer_without_end_is_given_up_by_what_came_and_not_by_time"),
    Row("series of one name in `/metrics`", "scheduling.engines.prometheus_text:MOST_SERIES", "the figure counts as unknown", "unit/engines/test_engine_limits.py::test_of_more_series_of_one_name_than_a_server_has_nothing_is_known"),
    Row("running or queued requests that an engine reports", "scheduling.engines.figures:MAX_REQUESTS", "the figure counts as unknown", "unit/gateway/test_request_bounds.py::test_requests_that_no_engine_can_run_are_not_believed"),
    Row("pause that an engine requests with `Retry-After` [s]", "scheduling.state.types:MAX_PAUSE_S", "shortened to the bound", "unit/gateway/test_request_bounds.py::test_a_pause_that_an_engine_asks_for_is_shortened_to_the_bound"),
    Row("time of a step that the scheduler inside an engine logs [s]", "10^-6 to 10^5 (`SHORTEST_S`, `LONGEST_S`, scheduling.engines.kinds.vllm_plugin)", "the log is not read", "unit/engines/test_step_log.py::test_what_is_no_log_of_steps_is_an_error_and_no_figure"),
    Row("spending of an account, as shared state reports it [10^-12 of the currency]", "scheduling.core.ledger.money:MAX_PICOS", "counted as 0", "unit/gateway/test_request_bounds.py::test_spending_that_no_requests_can_have_caused_counts_for_nothing"),
)  # fmt: skip
PROVIDERS = (
    Row("time for one answer, from its question to its last byte [s]", "controlplane.signin.exchange:WHOLE_S", "given up: 502 at sign-in; who is signed in stays so and is asked about again", "unit/controlplane/test_hostile_provider.py::test_a_provider_whose_answer_never_ends_holds_up_no_sign_in"),
    Row("one answer, which is never unpacked [bytes]", "controlplane.signin.exchange:MOST_BYTES", "likewise", "unit/controlplane/test_hostile_provider.py::test_more_than_a_provider_has_to_say_is_not_read"),
)  # fmt: skip
TABLES = (
    ("What a client can send without a session or key", STRANGERS),
    ("What a tenant can increase", TENANTS),
    ("What an engine can report", ENGINES),
    ("What an identity provider can answer (OpenID Connect)", PROVIDERS),
)


def value(bound: str) -> str:
    """A row's bound as the page shows it."""
    module, colon, name = bound.partition(":")
    if not colon or " " in bound:
        return bound
    figure = getattr(import_module(module), name)
    return f"{figure:,} (`{name}`, {module})" if figure < 10**15 else f"10^{len(str(figure)) - 1} (`{name}`, {module})"


def unbounded(kinds: list[type[serializers.ModelSerializer]]) -> list[str]:
    """Fields that a person writes by REST, text or list, that no length, choice or check bounds."""
    found = []
    for kind in kinds:
        for name, field in kind().fields.items():
            if field.read_only or not isinstance(field, serializers.CharField | serializers.JSONField):
                continue
            column = next((f for f in kind.Meta.model._meta.concrete_fields if f.name == field.source), None)
            if getattr(field, "max_length", None) or (column is not None and column.max_length):
                continue
            if isinstance(column, models.JSONField) and column.validators:
                continue
            found.append(f"{kind.Meta.model.__name__}.{name}")
    return found


def page() -> str:
    lines = [
        "# Bounds",
        "",
        "For operators and reviewers: the bound of everything whose size a client, a tenant or an engine chooses, what happens",
        "beyond it, and the test that proves it. Names in capitals without a module are settings ([settings.md](settings.md), without",
        "`QUARTERMASTER_`). Limits of connections: [limits.md](limits.md).",
        "",
        "`python -m tests.support.bounds` writes this page and reads the figures from the code; a test compares both. The same test",
        "checks that every text field of the management API has a maximum length, a choice or a check.",
        "",
    ]
    for title, rows in TABLES:
        lines += [f"## {title}", "", "| what | bound | beyond it | test |", "|---|---|---|---|"]
        lines += [f"| {row.what} | {value(row.bound)} | {row.then} | `tests/{row.test}` |" for row in rows]
        lines.append("")
    lines += [f"{sum(len(rows) for _, rows in TABLES)} bounds, each with its test.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    print(page(), end="")
