"""The routes of the simulated engine: vLLM's, and ``/sim/*`` to look inside and to make it fail."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from scheduling.core.capacity.kv import BLOCK_TOKENS
from scheduling.core.engine.step_time import EnginePreset
from scheduling.engines.simulated import adapters as lora
from scheduling.engines.simulated import metrics, named_events, pooling, requests, text, transfer
from scheduling.engines.simulated.adapters import Adapters
from scheduling.engines.simulated.answers import Answer
from scheduling.engines.simulated.engine import QueueFull, Sequence
from scheduling.engines.simulated.faults import Faults, Parked
from scheduling.engines.simulated.http import Connection, Exchange, Request
from scheduling.engines.simulated.prefix_cache import PrefixCache, ids_of
from scheduling.engines.simulated.requests import ApiError
from scheduling.engines.simulated.runner import Runner

VERSION = "0.32.0"
ASLEEP_LOOK_S = 0.02  # so often one that is put to sleep looks whether all has ended
HOST_TO_GPU = 25e9  # bytes/s of weights that come back from host memory (PCIe 4.0 x16, about)


class Api:
    """Answers requests for one replica."""

    def __init__(
        self, runner: Runner, *, model: str, preset: EnginePreset, max_model_len: int, seed: int, api_key: str,
        cache: PrefixCache | None = None, dev_mode: bool = False, adapters: Adapters | None = None,
        runtime_lora: bool = False,
    ) -> None:  # fmt: skip
        self.faults = Faults()
        self._runner = runner
        self._engine = runner.engine
        self._model = model
        self.adapters = Adapters({}) if adapters is None else adapters
        self._preset = preset
        self._cache = cache
        self._max_model_len = max_model_len
        self._seed = seed
        self._authorization = f"Bearer {api_key}" if api_key else ""
        self._chance = random.Random(seed)
        self.asleep = False  # its weights are in host memory: what is asked of it waits
        self._parked: list[Parked] = []
        self._created = int(time.time())
        self._routes = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/messages"): self._message,
            ("POST", "/v1/messages/count_tokens"): self._count,
            ("POST", "/v1/responses"): self._respond,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/v1/rerank"): self._rerank,
            ("POST", "/v2/rerank"): self._rerank,
            ("POST", "/rerank"): self._rerank,
            ("POST", "/v1/score"): self._score,
            ("POST", "/score"): self._score,
            ("POST", "/classify"): self._classify,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/version"): self._version,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/sim/stats"): self._stats,
            ("GET", "/sim/fault"): self._show_faults,
            ("POST", "/sim/fault"): self._set_faults,
        }
        if dev_mode:
            self._routes["GET", "/server_info"] = self._server_info
            self._routes["POST", "/sleep"] = self._sleep
            self._routes["POST", "/wake_up"] = self._wake_up
            self._routes["GET", "/is_sleeping"] = self._is_sleeping
        if runtime_lora:
            self._routes["POST", "/v1/load_lora_adapter"] = self._load_adapter
            self._routes["POST", "/v1/unload_lora_adapter"] = self._unload_adapter
        self._paths = {path for _, path in self._routes}

    def handle(self, connection: Connection, request: Request) -> None:
        """Answers a request, now or later."""
        route = self._routes.get((request.method, request.path))
        if route is None:
            exists = request.path in self._paths
            detail = "Method Not Allowed" if exists else "Not Found"
            connection.respond(405 if exists else 404, msgspec.json.encode({"detail": detail}))
            return
        hangs = self.faults.hang and (request.path.startswith("/v1/") or request.path == "/tokenize")
        if hangs or (self.asleep and request.method == "POST" and request.path.startswith("/v1/")):
            parked = Parked(connection, request)
            connection.exchange = parked
            self._parked.append(parked)
            return
        if self._authorization and request.path.startswith("/v1/") and request.authorization != self._authorization:
            connection.respond(401, b'{"error":"Unauthorized"}')
            return
        try:
            route(connection, request)
        except ApiError as error:
            connection.respond(error.status, error.body)

    # --- generations

    def _chat(self, connection: Connection, request: Request) -> None:
        body = requests.decode(requests.CHAT, request.body)
        bound = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        prompt = requests.chat_prompt(body.messages)
        ids = [] if self._cache is None else [requests.cached_ids(body.messages)]
        self._generate(connection, body, [prompt], bound, request.name, ids, chat=True)

    def _completion(self, connection: Connection, request: Request) -> None:
        body = requests.decode(requests.COMPLETION, request.body)
        bound = requests.COMPLETION_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        prompts = requests.completion_prompts(body.prompt)
        ids = [] if self._cache is None else [ids_of([str(body.prompt)]) for _ in prompts[:1]]
        self._generate(connection, body, prompts, bound, request.name, ids, chat=False)

    def _generate(
        self,
        connection: Connection,
        body: requests.GenerationBody,
        prompts: list[tuple[int, int]],
        bound: int | None,
        name: str,
        ids: list[list[int]],
        *,
        chat: bool,
    ) -> None:
        self._check_model(body.model)
        requests.check(body, bound, self._max_model_len)
        copies = 1 if body.n is None else body.n
        if copies * len(prompts) > requests.MAX_CHOICES:
            raise ApiError(400, f"n={copies} for {len(prompts)} prompts is more than {requests.MAX_CHOICES} answers")
        answer = Answer(connection, model=self._named(body.model), chat=chat, body=body, name=name, abort=self._abort)
        answer.prompt_tokens = sum(tokens for tokens, _ in prompts)
        for tokens, mark in prompts:
            most = requests.most_output(tokens, bound, self._max_model_len)
            for copy in range(copies):
                natural = text.natural_output_tokens((mark + copy) & 0xFFFFFFFF, self._seed)
                wanted = most if body.ignore_eos else max(natural, body.min_tokens or 0)
                answer.add(tokens, mark + copy, min(wanted, most), stops=wanted <= most and not body.ignore_eos)
        if self._cache is not None:
            answer.cached_tokens = 0
            for choice, prompt in zip(answer.choices, ids, strict=False):
                cached, blocks = self._cache.take(prompt, self._cached_as(body.model, body.cache_salt))
                choice.seq.cached_blocks = blocks
                choice.seq.cached = min(cached, (choice.seq.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
                answer.cached_tokens += choice.seq.cached
        self._begin(body.kv_transfer_params, answer, self._start)

    def _abort(self, seq: Sequence) -> None:
        if self._cache is not None and seq.computed < seq.prompt_tokens:
            self._cache.drop(seq.cached_blocks[seq.computed // BLOCK_TOKENS :])
        self._runner.abort(seq)

    def _begin(self, asked: requests.Transfer | None, answer: transfer.A, start: transfer.Start[transfer.A]) -> None:
        transfer.begin(asked, answer, self._seed, self._preset.kv_bytes_per_token / self._runner.speed, start)

    # --- generations in other forms

    def _message(self, connection: Connection, request: Request) -> None:
        body = requests.decode(named_events.MESSAGES, request.body)
        if body.max_tokens <= 0:
            raise ApiError(400, "max_tokens must be positive")
        prompt = requests.chat_prompt(named_events.messages_of(body))
        seq, mark = self._one(body.model, prompt, body.max_tokens, 0, ignore_eos=False)
        answer = named_events.MessageAnswer(
            connection, model=self._named(body.model), name=f"chatcmpl-{request.name}", stream=bool(body.stream),
            seq=seq, mark=mark, abort=self._runner.abort,
        )  # fmt: skip
        self._begin(body.kv_transfer_params, answer, self._tell)

    def _count(self, connection: Connection, request: Request) -> None:
        body = requests.decode(named_events.MESSAGES, request.body)
        self._check_model(body.model)
        tokens, _ = requests.chat_prompt(named_events.messages_of(body))
        answer = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
        connection.respond(200, msgspec.json.encode(answer))

    def _respond(self, connection: Connection, request: Request) -> None:
        body = requests.decode(named_events.RESPONSES, request.body)
        prompt = requests.chat_prompt(named_events.input_of(body))
        seq, mark = self._one(
            body.model, prompt, body.max_output_tokens, body.priority or 0, ignore_eos=bool(body.ignore_eos)
        )
        answer = named_events.ResponseAnswer(
            connection, model=self._named(body.model), name=body.request_id or f"resp_{request.name}",
            stream=bool(body.stream), seq=seq, mark=mark, abort=self._runner.abort,
        )  # fmt: skip
        answer.body = body
        self._begin(body.kv_transfer_params, answer, self._tell)

    def _one(
        self, model: str | None, prompt: tuple[int, int], bound: int | None, priority: int, *, ignore_eos: bool
    ) -> tuple[Sequence, int]:
        """A sequence for a conversation, and where its words begin."""
        self._check_model(model)
        tokens, mark = prompt
        most = requests.most_output(tokens, bound, self._max_model_len)
        natural = text.natural_output_tokens(mark & 0xFFFFFFFF, self._seed)
        wanted = most if ignore_eos else natural
        return Sequence(tokens, min(wanted, most), wanted <= most and not ignore_eos, priority), mark

    def _tell(self, connection: Connection, answer: named_events.NamedAnswer) -> None:
        self._maybe_fail()
        if self.faults.cut_rate and self._chance.random() < self.faults.cut_rate:
            answer.cut_after = max(1, answer.seq.output_tokens // 2)
        self._submit(answer, [answer.seq])
        connection.exchange = answer
        if answer.stream:
            connection.begin_stream()
            answer.head()

    # --- what is only read

    def _embeddings(self, connection: Connection, request: Request) -> None:
        body = requests.decode(pooling.READ, request.body)
        prompts = pooling.prompts_of(body)
        counts = [count for count, _ in prompts]
        self._pool(
            connection, body, counts, lambda: pooling.embeddings(request.name, self._named(body.model), body, prompts)
        )

    def _classify(self, connection: Connection, request: Request) -> None:
        body = requests.decode(pooling.READ, request.body)
        prompts = pooling.prompts_of(body)
        counts = [count for count, _ in prompts]
        self._pool(connection, body, counts, lambda: pooling.labels(request.name, self._named(body.model), prompts))

    def _rerank(self, connection: Connection, request: Request) -> None:
        body = requests.decode(pooling.RERANK, request.body)
        documents = [body.documents] if isinstance(body.documents, str) else body.documents
        if not documents:
            raise ApiError(400, "At least one document is needed")
        counts = [text.count_tokens(body.query) + text.count_tokens(one) for one in documents]
        self._pool(
            connection, body, counts,
            lambda: pooling.ranking(request.name, self._named(body.model), body, documents, sum(counts)),
        )  # fmt: skip

    def _score(self, connection: Connection, request: Request) -> None:
        body = requests.decode(pooling.SCORE, request.body)
        pairs = pooling.sides(body)
        counts = [text.count_tokens(a) + text.count_tokens(b) for a, b in pairs]
        self._pool(
            connection, body, counts, lambda: pooling.scores(request.name, self._named(body.model), pairs, sum(counts))
        )  # fmt: skip

    def _pool(
        self, connection: Connection, body: pooling.PoolingBody, counts: list[int], finish: Callable[[], dict[str, Any]]
    ) -> None:
        self._check_model(body.model)
        for count in counts:
            requests.most_output(count - 1, None, self._max_model_len)
        self._maybe_fail()
        answer = pooling.Pooling(connection, counts, body.priority or 0, finish, self._runner.abort)
        self._submit(answer, answer.sequences)
        connection.exchange = answer

    # ---

    def _maybe_fail(self) -> None:
        if self.faults.error_rate and self._chance.random() < self.faults.error_rate:
            raise ApiError(500, "EngineCore encountered an issue (simulated).", "InternalServerError")

    def _submit(self, exchange: Exchange, sequences: list[Sequence]) -> None:
        try:
            for sequence in sequences:
                self._runner.submit(sequence)
        except QueueFull:
            exchange.lost()
            raise ApiError(
                503, "The engine is currently busy. Please try again later.", "ServiceUnavailableError"
            ) from None

    def _start(self, connection: Connection, answer: Answer) -> None:
        self._maybe_fail()
        if self.faults.cut_rate and self._chance.random() < self.faults.cut_rate:
            answer.cut_after = max(1, answer.choices[0].seq.output_tokens // 2)
        self._submit(answer, [choice.seq for choice in answer.choices])
        connection.exchange = answer
        if answer.stream:
            connection.begin_stream()

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model and name not in self.adapters:
            raise ApiError(
                404, f"The model `{name}` does not exist. Valid aliases: {self._model}.", "NotFoundError", "model"
            )

    def _named(self, name: str | None) -> str:
        """What an answer says which model it is of."""
        return name if name is not None and name in self.adapters else self._model

    def _cached_as(self, name: str | None, salt: str | None) -> str:
        """Blocks of an adapter are its own."""
        return f"{name} {salt or ''}" if name is not None and name in self.adapters else salt or ""

    # --- what vLLM tells about itself

    def _models(self, connection: Connection, request: Request) -> None:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
            "max_model_len": self._max_model_len,
            "permission": [],
        }
        cards = [card, *self.adapters.cards(self._model, self._created)]
        connection.respond(200, msgspec.json.encode({"object": "list", "data": cards}))

    def _load_adapter(self, connection: Connection, request: Request) -> None:
        body = requests.decode(lora.LOAD, request.body)
        if self.faults.load_fails:
            why = f"Loading lora {body.lora_name} failed: No adapter found for <path>"
            raise ApiError(404, why, "NotFoundError")
        if self.faults.load_s > 0:
            parked = Parked(connection, request)
            connection.exchange = parked
            asyncio.get_running_loop().call_later(self.faults.load_s, self._loaded, parked, body)
        else:
            connection.respond(200, self.adapters.load(body).encode(), "text/plain; charset=utf-8")

    def _loaded(self, parked: Parked, body: lora.LoadBody) -> None:
        try:
            status, answer = 200, self.adapters.load(body).encode()
        except ApiError as error:
            status, answer = error.status, error.body
        if not parked.gone:
            parked.connection.exchange = None
            parked.connection.respond(status, answer)

    def _unload_adapter(self, connection: Connection, request: Request) -> None:
        body = requests.decode(lora.UNLOAD, request.body)
        connection.respond(200, self.adapters.unload(body).encode(), "text/plain; charset=utf-8")

    def _tokenize(self, connection: Connection, request: Request) -> None:
        body = requests.decode(requests.TOKENIZE, request.body)
        self._check_model(body.model)
        if body.messages is not None:
            count, _ = requests.chat_prompt(body.messages)
            ids = list(range(count))
        elif body.prompt is not None:
            ids = text.token_ids(body.prompt)
        else:
            raise ApiError(400, "prompt or messages is required", "Bad Request")
        answer = {"count": len(ids), "max_model_len": self._max_model_len, "tokens": ids, "token_strs": None}
        connection.respond(200, msgspec.json.encode(answer))

    def _detokenize(self, connection: Connection, request: Request) -> None:
        body = requests.decode(requests.DETOKENIZE, request.body)
        self._check_model(body.model)
        prompt = "".join(text.VOCABULARY[number & text.VOCABULARY_MASK].decode() for number in body.tokens)
        connection.respond(200, msgspec.json.encode({"prompt": prompt}))

    def _version(self, connection: Connection, request: Request) -> None:
        connection.respond(200, msgspec.json.encode({"version": VERSION}))

    def _server_info(self, connection: Connection, request: Request) -> None:
        """As vLLM answers ``?config_format=json`` in its development mode: what is asked of it here."""
        limits = self._engine.limits
        scheduler = {
            "max_num_batched_tokens": limits.token_budget,
            "max_num_seqs": limits.slots,
            "policy": "priority" if limits.priority_scheduling else "fcfs",
            "enable_chunked_prefill": True,
        }
        model = {"model": self._model, "max_model_len": limits.max_model_len}
        config = {"model_config": model, "scheduler_config": scheduler}
        connection.respond(200, msgspec.json.encode({"vllm_config": config, "vllm_env": {}, "system_env": {}}))

    def _sleep(self, connection: Connection, request: Request) -> None:
        """As vLLM's ``/sleep?mode=wait``: what runs ends, what comes waits."""
        self.asleep = True
        parked = Parked(connection, request)
        connection.exchange = parked
        self._fall_asleep(parked)

    def _fall_asleep(self, parked: Parked) -> None:
        if len(self._engine.running) + self._engine.waiting:
            asyncio.get_running_loop().call_later(ASLEEP_LOOK_S, self._fall_asleep, parked)
        else:
            parked.answer({"status": "sleeping", "level": 1})

    def _wake_up(self, connection: Connection, request: Request) -> None:
        """Weights come back from host memory."""
        seconds = self._preset.weights_bytes / self._preset.gpus / HOST_TO_GPU / self._runner.speed
        parked = Parked(connection, request)
        connection.exchange = parked
        asyncio.get_running_loop().call_later(seconds if self.asleep else 0.0, self._awake, parked)

    def _awake(self, parked: Parked) -> None:
        self.asleep = False
        self._release()
        parked.answer({"status": "awake", "tags": None})

    def _is_sleeping(self, connection: Connection, request: Request) -> None:
        connection.respond(200, msgspec.json.encode({"is_sleeping": self.asleep}))

    def _health(self, connection: Connection, request: Request) -> None:
        connection.respond(200, b"")

    def _load(self, connection: Connection, request: Request) -> None:
        load = len(self._engine.running) + self._engine.waiting
        connection.respond(200, msgspec.json.encode({"server_load": load}))

    def _metrics(self, connection: Connection, request: Request) -> None:
        preset, engine = self._preset, self._engine
        pool = engine.total_blocks * BLOCK_TOKENS * preset.kv_bytes_per_token
        busy, active = self._runner.utilization()
        gpus = metrics.Gpus(
            count=preset.gpus,
            name=preset.gpu,
            memory_bytes=preset.gpu_memory_bytes,
            used_bytes=0 if self.asleep else min(preset.gpu_memory_bytes, (preset.weights_bytes + pool) // preset.gpus),
            busy=busy,
            active=active,
        )
        page = metrics.render(
            engine.totals,
            running=len(engine.running),
            waiting=min(engine.waiting, engine.left_waiting),
            kv_usage=engine.kv_usage,
            kv_blocks=engine.total_blocks,
            model=self._model,
            gpus=gpus,
            prefix=None if self._cache is None else (self._cache.queried, self._cache.hit),
            steps=engine.steps,
            asleep=self.asleep,
        )
        connection.respond(200, page.encode(), "text/plain; version=1.0.0; charset=utf-8")

    # --- only here

    def _stats(self, connection: Connection, request: Request) -> None:
        engine, totals = self._engine, self._engine.totals
        connection.respond(
            200,
            msgspec.json.encode(
                {
                    "running": len(engine.running),
                    "waiting": engine.waiting,
                    "open": len(engine.running) + engine.waiting,
                    "kv_tokens_used": (engine.total_blocks - engine.free_blocks) * BLOCK_TOKENS,
                    "kv_tokens": engine.total_blocks * BLOCK_TOKENS,
                    "completed": totals.finished_stop + totals.finished_length,
                    "aborted": totals.aborted,
                    "prompt_tokens": totals.prompt_tokens,
                    "generation_tokens": totals.generation_tokens,
                    "preemptions": totals.preemptions,
                    "steps": engine.steps,
                    "stalled": self._runner.stalled,
                    "hanging": sum(not parked.gone for parked in self._parked),
                }
            ),
        )

    def _show_faults(self, connection: Connection, request: Request) -> None:
        connection.respond(200, msgspec.json.encode(self.faults))

    def _set_faults(self, connection: Connection, request: Request) -> None:
        before = msgspec.to_builtins(self.faults)
        changes = requests.decode(requests.NAMED_VALUES, request.body)
        try:
            faults = msgspec.convert({**before, **changes}, Faults)
        except msgspec.ValidationError as error:
            raise ApiError(400, str(error), "Bad Request") from error
        if not (0 <= faults.error_rate <= 1 and 0 <= faults.cut_rate <= 1 and faults.slow > 0):
            raise ApiError(400, "rates are between 0 and 1, slow is above 0", "Bad Request")
        self.faults = faults
        self._runner.slow = faults.slow
        if "stall" in changes:
            self._runner.stall(math.inf if faults.stall is True else float(faults.stall))
        if not faults.hang:
            self._release()
        connection.respond(200, msgspec.json.encode(faults))

    def _release(self) -> None:
        """Answers what was kept waiting, as if it came now."""
        parked, self._parked = self._parked, []
        for waiting in parked:
            if not waiting.gone:
                waiting.connection.exchange = None
                self.handle(waiting.connection, waiting.request)
