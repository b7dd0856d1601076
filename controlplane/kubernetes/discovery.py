"""Follows the replicas that a TokenPool names in the cluster, and keeps its backends the same.

One that is ready and serves the pool's model is added, with slots and KV cache as its engine says them. One that is not
ready, or ends, drains. One that is listed no longer drains as well, and goes when its engine is silent, at the latest
after the pool's longest drain: a Service drops an endpoint while it still answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import kopf

from controlplane.kubernetes import catalog, replicas
from controlplane.kubernetes.api import Api, connect
from controlplane.kubernetes.catalog import CatalogReplica, CustomResource, NewReplica
from controlplane.kubernetes.replicas import ClusterReplica, Source, SourceError
from scheduling.engines.client import EngineError, control_http
from scheduling.engines.kinds import kind_of, make_client
from tenants.engine_figures import filled
from tenants.models import Pool

log = logging.getLogger(__name__)

LOOK_S = 2.0  # at engines that are not settled: they start, or are gone
SETTLED_S = 15.0  # at everything: a change made behind our back is undone
SOURCE_S = 15.0  # the object is read again: its selector may have changed
RETRY_S = 2.0
ENGINE_S = 8.0
AT_A_TIME = 16


@dataclass(slots=True)
class ReplicaDiscovery:
    """One TokenPool's. ``resource`` is replaced when it changes; runs until it is cancelled."""

    resource: CustomResource
    changed: Callable[[], None]
    fault: str = ""
    looked_for: str = ""  # pods or slices, with their labels
    listed: list[ClusterReplica] | None = None  # None: the cluster has not said yet
    left_out: int = 0  # that the cluster has beyond the most that a pool takes
    taken: set[str] = field(default_factory=set)  # URLs of its backends, as the catalog was last seen
    unfit: dict[str, str] = field(default_factory=dict)  # by URL: why it is not one of the pool's
    _unlisted_since: dict[str, float] = field(default_factory=dict)  # by URL
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.resource.spec[replicas.SPEC]
        return spec

    def status(self) -> dict[str, int]:
        listed = self.listed or []
        ready = sum(one.ready and one.url in self.taken for one in listed)
        return {"found": len(listed) + self.left_out, "ready": ready}

    def problem(self) -> str:
        """What is not as it should be; empty where all is."""
        if self.fault:
            return self.fault
        if self.listed is None:
            return "the cluster has not been asked yet"
        if not self.listed:
            return f"no replica was found{f': no {self.looked_for} is here' if self.looked_for else ''}"
        new = {one.url for one in self.listed if one.ready} - self.taken
        wrong = dict.fromkeys(new, "it is being looked at") | self.unfit
        texts = [f"{url}: {why}" for url, why in sorted(wrong.items())]
        if self.left_out:
            texts.insert(0, f"{self.left_out} are left out: a pool has at most {replicas.MOST_REPLICAS} replicas")
        return "; ".join(texts)[:1000]

    async def run(self, info: kopf.ConnectionInfo) -> None:
        async with connect(info) as api, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(api))
            tasks.create_task(self._sync())

    # --- what the cluster has

    async def _follow(self, api: Api) -> None:
        """What is known stays as it is while the API does not answer."""
        while True:
            try:
                spec = self.spec
                source = await self._source(api, spec)
                self.fault = ""
                self.looked_for = f"{'EndpointSlice' if source.slices else 'pod'} with {source.labels}"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if replicas.source_object(spec) is None else SOURCE_S):
                        await self._watch(api, source)
            except SourceError as error:
                self._observe(str(error), None)
                await asyncio.sleep(SOURCE_S / 5)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self._observe(f"the Kubernetes API: {error or type(error).__name__}"[:500], self.listed)
                await asyncio.sleep(RETRY_S)

    async def _source(self, api: Api, spec: dict[str, Any]) -> Source:
        needed = replicas.source_object(spec)
        if needed is None:
            return replicas.source(spec, None)
        versions, plural, name = needed
        for version in versions:
            there = await api.get(f"/apis/{version}/namespaces/{self.resource.namespace}/{plural}/{name}")
            if there is not None:
                return replicas.source(spec, there)
        return replicas.source(spec, None)

    async def _watch(self, api: Api, source: Source) -> None:
        inside = f"namespaces/{self.resource.namespace}"

        def on_change(objects: dict[str, dict[str, Any]]) -> None:
            read = replicas.of_slices if source.slices else replicas.of_pods
            self._observe("", read(objects.values(), source.port))

        if not source.slices:
            return await api.watch(f"/api/v1/{inside}/pods", source.labels, on_change)
        for version in replicas.SLICES:
            try:
                return await api.watch(f"/apis/{version}/{inside}/endpointslices", source.labels, on_change)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 404 or version == replicas.SLICES[-1]:
                    raise
        return None

    def _observe(self, fault: str, listed: list[ClusterReplica] | None) -> None:
        if listed is not None:
            self.left_out = max(0, len(listed) - replicas.MOST_REPLICAS)
            if self.left_out:  # those that are taken stay, whatever comes beside them
                listed = sorted(listed, key=lambda one: (one.url not in self.taken, one.url))[: replicas.MOST_REPLICAS]
        if (fault, listed) != (self.fault, self.listed):
            self.fault, self.listed = fault, listed if listed is not None else self.listed
            self._changed.set()
            self.changed()

    # --- what the catalog has

    async def _sync(self) -> None:
        while True:
            settled = False
            try:
                if self.listed is not None:
                    settled = await self._reconcile(self.listed)
            except Exception as error:
                log.warning("replicas of %s: %s: %s", self.resource.where, type(error).__name__, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLED_S if settled else LOOK_S):
                    await self._changed.wait()
            self._changed.clear()

    async def _reconcile(self, listed: list[ClusterReplica]) -> bool:
        """Whether nothing is left to do until something changes."""
        recorded = await asyncio.to_thread(catalog.catalog_replicas, self.resource)
        if recorded is None:
            return False
        pool, there = recorded
        urls = {one.url for one in there}
        new = [one for one in listed if one.ready and one.url not in urls]
        unfit: dict[str, str] = {}
        add: list[NewReplica] = []
        for one, seen in zip(new, await self._look(pool, new), strict=True):
            if isinstance(seen, str):
                unfit[one.url] = seen
            else:
                add.append(NewReplica(one.name, one.url, seen))
        ready = {one.url for one in listed if one.ready}
        gone = await self._gone(pool, [one for one in there if one.url not in {replica.url for replica in listed}])
        staying = [one for one in there if one.backend not in gone]
        drain = [one.backend for one in staying if one.url not in ready and not one.drained_here]
        resume = [one.backend for one in staying if one.url in ready and one.drained_here]
        if add or drain or resume or gone:
            unfit |= await asyncio.to_thread(
                catalog.update_replicas, self.resource, add=add, drain=drain, resume=resume, remove=gone
            )
        taken = {one.url for one in staying} | ({one.url for one in add} - unfit.keys())
        if (unfit, taken) != (self.unfit, self.taken) or drain or resume:
            self.unfit, self.taken = unfit, taken
            self.changed()
        return not unfit and len(staying) == len({one.url for one in listed} & urls)

    async def _look(self, pool: Pool, new: list[ClusterReplica]) -> list[dict[str, int] | str]:
        """What engines say of themselves, or why they are not taken."""
        turns = asyncio.Semaphore(AT_A_TIME)

        async def look(one: ClusterReplica) -> dict[str, int] | str:
            async with turns:
                wrong = await self._wrong_model(pool, one.url)
                return wrong or await asyncio.to_thread(self._figures, pool, one)

        return list(await asyncio.gather(*(look(one) for one in new)))

    async def _wrong_model(self, pool: Pool, url: str) -> str:
        model = pool.upstream_model or pool.model
        try:
            async with control_http() as http:
                served = [one.id for one in await make_client(url, http=http, kind=pool.engine).models(ENGINE_S)]
        except EngineError as error:
            return f"it is not taken yet: {error}"[:300]
        if model in served:
            return ""
        return f"it serves {', '.join(served[:5])!r}, not {model!r}: check the selector, or upstreamModel"[:300]

    def _figures(self, pool: Pool, one: ClusterReplica) -> dict[str, int] | str:
        given = {"slots": self.spec.get("slots") or one.slots, "kv_tokens": self.spec.get("kvTokens")}
        row = filled({"pool": pool.slug, "url": one.url} | given, ENGINE_S)
        figures = {name: row[name] for name in given if row.get(name)}
        lacking = [name for name in given if name not in figures]
        if lacking and kind_of(pool.engine).reports:
            return f"it does not say its {' and '.join(lacking)} yet; spec.replicas can say it"
        return figures

    async def _gone(self, pool: Pool, unlisted: list[CatalogReplica]) -> list[str]:
        """Backends of those that are listed no more, and do not answer or have had their time."""
        now = asyncio.get_running_loop().time()
        self._unlisted_since = {one.url: self._unlisted_since.get(one.url, now) for one in unlisted}
        if not unlisted:
            return []
        async with control_http() as http:
            clients = [make_client(one.url, http=http, kind=pool.engine) for one in unlisted]
            answers = await asyncio.gather(*(client.health() for client in clients))
        return [
            one.backend
            for one, answer in zip(unlisted, answers, strict=True)
            if not answer or now - self._unlisted_since[one.url] > pool.drain_limit_s
        ]
