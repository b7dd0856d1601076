"""``manage.py calibrate POOL``: load a pool's replicas for a moment and propose what the catalog should say of them."""

from __future__ import annotations

import asyncio
import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from controlplane.calibration import Measured, changes, measure
from scheduling.core.capacity.kv import kv_bytes_per_token, kv_notes
from scheduling.engines.client import EngineError
from scheduling.engines.loading import Shape
from tenants import services
from tenants.audit import Actor
from tenants.models import Backend, Pool


class Command(BaseCommand):
    help = (
        "Loads a pool's replicas one after the other with requests of its own (closed bursts of growing size), reads "
        "their counters, and proposes tokens per second, slots and KV cache, and step-time coefficients. Changes "
        "nothing without --apply. A replica that serves others is refused: drain it first."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pool", help="the pool's name")
        parser.add_argument("--backend", action="append", help="only this backend; may be repeated")
        parser.add_argument("--seconds", type=float, default=40.0, help="approximate duration per replica (default 40)")
        parser.add_argument("--config", type=Path, help="the model's config.json, to compute KV bytes per token")
        parser.add_argument("--kv-dtype", default="auto", help="vLLM's --kv-cache-dtype, such as fp8 (default auto)")
        parser.add_argument("--no-load", action="store_true", help="read only --config; send no requests")
        parser.add_argument("--prompt", type=int, default=384, help="tokens of a typical prompt (default 384)")
        parser.add_argument("--output", type=int, default=64, help="tokens of a typical answer (default 64)")
        parser.add_argument("--apply", action="store_true", help="write the proposal into the catalog")
        parser.add_argument("--force", action="store_true", help="run even while it serves other requests")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 5 <= options["seconds"] <= 3600:
            raise CommandError("--seconds must be from 5 to 3600")
        if options["prompt"] < 64 or options["output"] < 8:
            raise CommandError("--prompt must be at least 64 and --output at least 8 tokens")
        pool = Pool.objects.filter(slug=options["pool"]).first()
        if pool is None:
            names = ", ".join(Pool.objects.values_list("slug", flat=True))
            raise CommandError(f"There is no pool {options['pool']!r}; there are: {names or 'none'}")
        if options["no_load"] and options["config"] is None:
            raise CommandError("--no-load leaves nothing to look at; give --config")
        if options["config"] is not None:
            self._architecture(pool, options["config"], options["kv_dtype"], options["apply"])
        if not options["no_load"]:
            self._replicas(pool, options)

    def _replicas(self, pool: Pool, options: dict[str, Any]) -> None:
        """One that fails keeps no other from being measured. What is refused is tried once more at the end: a replica
        that turns out smaller may leave too little for what is promised until the others are known to be larger."""
        failed: list[str] = []
        refused: list[tuple[Backend, dict[str, tuple[float, float]]]] = []
        for backend in self._backends(pool, options["backend"]):
            try:
                measured = self._measure(pool, backend, options)
            except CommandError as error:
                failed.append(str(error))
                self.stderr.write(str(error))
                continue
            self._show(backend, measured)
            found = changes(backend.spec(), measured)
            try:
                self._settle(backend, found, options["apply"])
            except CommandError as error:
                refused.append((backend, found))
                self.stderr.write(str(error))
        for backend, found in refused:
            try:
                self._settle(backend, found, options["apply"])
            except CommandError as error:
                failed.append(str(error))
        if failed:
            raise CommandError("\n".join(failed))

    def _architecture(self, pool: Pool, path: Path, kv_dtype: str, apply: bool) -> None:
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(config, dict):
                raise ValueError("it is not a JSON object")
            size, notes = kv_bytes_per_token(config, kv_dtype), kv_notes(config)
        except (OSError, ValueError) as error:
            raise CommandError(f"{path}: {error}") from error
        self.stdout.write(f"{pool.slug}: {size} bytes of KV cache a token")
        for note in notes:
            self.stdout.write(f"  {note}")
        changes = {} if pool.kv_bytes_per_token == size else {"kv_bytes_per_token": (pool.kv_bytes_per_token, size)}
        self._settle(pool, changes, apply)

    @staticmethod
    def _backends(pool: Pool, wanted: Sequence[str] | None) -> list[Backend]:
        there = {backend.slug: backend for backend in pool.backends.order_by("slug")}
        missing = [name for name in wanted or () if name not in there]
        if missing or not there:
            what = f"has no backend {missing[0]!r}" if missing else "has no backends"
            raise CommandError(f"Pool {pool.slug} {what}; there are: {', '.join(there) or 'none'}")
        return [there[name] for name in wanted or there]

    def _measure(self, pool: Pool, backend: Backend, options: dict[str, Any]) -> Measured:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
            item = bar.add_task(backend.slug, total=options["seconds"])

            def passed(done: float, total: float) -> None:
                bar.update(item, completed=min(done, total), total=total)

            model = pool.upstream_model or pool.model
            usual = Shape(options["prompt"], options["output"])
            load = measure(
                backend.spec(),
                model,
                options["seconds"],
                usual=usual,
                force=options["force"],
                passed=passed,
                engine=pool.engine,
            )
            try:
                return asyncio.run(load)
            except (EngineError, ValueError) as error:
                raise CommandError(f"Backend {backend.slug}: {error}") from error

    def _show(self, backend: Backend, measured: Measured) -> None:
        out = self.stdout.write
        out(f"{backend.slug}: requests at once -> running, waiting, tokens/s")
        for burst in measured.bursts:
            out(
                f"  {burst.concurrency:5d} -> {burst.running_most:5d} {burst.waiting_most:5d} "
                f"{burst.tokens_per_s:9.0f}   ({burst.context:.0f} tokens of context)"
            )
        step = measured.proposal.step_time
        if step is not None:
            out(
                f"  a step takes {step.t0 * 1e3:.3g} ms + {step.a * 1e6:.3g} us a prefill token + "
                f"{step.b * 1e6:.3g} us a sequence + {step.c * 1e6:.3g} us a token of context "
                f"(error {measured.proposal.error:.1%})"
            )
        for note in (*measured.proposal.notes, measured.too_short):
            if note:
                out(f"  {note}")
        if measured.kv_tokens is None:
            out("  /metrics does not report KV blocks (vllm:cache_config_info): the KV cache stays as it is")

    def _settle(self, row: Pool | Backend, changes: Mapping[str, tuple[float, float]], apply: bool) -> None:
        for name, (now, then) in changes.items():
            self.stdout.write(f"  {name}: {now:.10g} -> {then:.10g}")
        if not changes:
            self.stdout.write("  the catalog says so already")
        elif apply:
            fresh = type(row).objects.get(pk=row.pk)
            for name, (_, then) in changes.items():
                setattr(fresh, name, then)
            try:
                services.save(actor=Actor.at_shell(), instance=fresh, action="calibrate")
            except ValidationError as error:
                raise CommandError(f"{row.slug} stays as it is. {' '.join(error.messages)}") from error
            self.stdout.write(self.style.SUCCESS(f"  applied to {row.slug}"))
        else:
            self.stdout.write("  nothing was changed; --apply writes this into the catalog")
