"""Beginning with Quartermaster: is there an engine at this address, and what belongs together in one transaction."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from django.core.exceptions import ValidationError as ModelValidationError
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from scheduling.engines.client import EngineError, Probe, control_http
from scheduling.engines.kinds import VLLM, make_client
from tenants import engine_figures, preview, services
from tenants.api import serializers as rows
from tenants.api.base import Right, ScopedView, as_answer, is_trial
from tenants.api.inputs import Moment
from tenants.models import ApiKey, Backend, Entitlement, Pool, Tenant
from tenants.models.backends import backend_at
from tenants.models.capacity import engine_choices
from tenants.validators import validate_base_url

PROBE_S = 10.0  # a person waits for it


class EngineCheckSerializer(rows.Strict):
    """The address to look at."""

    url = serializers.CharField(max_length=200, validators=[validate_base_url], help_text="Scheme, host and port.")
    api_key = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=500, help_text="What the engine was started with."
    )
    engine = serializers.ChoiceField(
        choices=engine_choices(), required=False, default=VLLM, help_text="Kind of engine that it is looked at as."
    )


class EngineModelSerializer(serializers.Serializer[dict[str, Any]]):
    id = serializers.CharField()
    max_model_len = serializers.IntegerField(allow_null=True, help_text="Prompt and answer together [tokens].")


class EngineFoundSerializer(serializers.Serializer[dict[str, Any]]):
    """What was found there."""

    reachable = serializers.BooleanField(help_text="It answered with the models that it serves.")
    ready = serializers.BooleanField(help_text="It generated a token.")
    why = serializers.CharField(help_text="One line for people.")
    models = EngineModelSerializer(many=True)
    kv_tokens = serializers.IntegerField(allow_null=True, help_text="What its KV cache holds, where it says so.")
    used_by = serializers.CharField(allow_null=True, help_text="The backend that already has this address.")


class EngineCheckView(ScopedView, APIView):
    """Looks at an engine before it becomes a backend."""

    action = "create"
    rights: ClassVar = {"create": Right.WRITE}

    @extend_schema(
        summary="Look at an engine",
        operation_id="engine_check",
        request=EngineCheckSerializer,
        responses=EngineFoundSerializer,
    )
    def post(self, request: Request) -> Response:
        """Asks the engine for its models, its cache and one token. For admins, who may also enter any backend."""
        body = EngineCheckSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        url = body.validated_data["url"]
        engine = asyncio.run(look(url, body.validated_data["api_key"], body.validated_data["engine"]))
        backend = backend_at(url)
        return Response(EngineFoundSerializer(engine | {"used_by": backend and backend.slug}).data)


async def look(url: str, api_key: str, kind: str = VLLM) -> dict[str, Any]:
    """What is found at an address; never raises for what the other side does."""
    async with control_http() as http:
        client = make_client(url, http=http, api_key=api_key, kind=kind)
        try:
            models = await client.models()
        except EngineError as error:
            return {"reachable": False, "ready": False, "why": str(error), "models": [], "kv_tokens": None}
        try:
            kv_tokens = await client.kv_tokens()
        except EngineError:
            kv_tokens = None
        probe = await client.probe(PROBE_S) if models else Probe(False, "It serves no model.", 0.0)
    shown = [{"id": model.id, "max_model_len": model.max_model_len} for model in models]
    return {"reachable": True, "ready": probe.ok, "why": probe.why, "models": shown, "kv_tokens": kv_tokens}


class FirstKeySerializer(rows.Strict):
    """A key for the entitlement that is made with it."""

    name = serializers.CharField(max_length=100)
    expires_at = Moment(required=False, allow_null=True, default=None)


class SetupView(ScopedView, APIView):
    """What belongs together, made together."""

    action = "create"
    trials: ClassVar = ("create",)
    rights: ClassVar = {"create": Right.WRITE}
    PARTS: ClassVar = {
        "pool": (Pool, rows.PoolSerializer, ()),
        "backend": (Backend, rows.BackendSerializer, ("pool",)),
        "tenant": (Tenant, rows.TenantSerializer, ()),
        "entitlement": (Entitlement, rows.EntitlementSerializer, ("tenant", "pool")),
    }

    @extend_schema(
        summary="Make a pool, backend, tenant, entitlement and key together",
        operation_id="setup",
        parameters=[OpenApiParameter("dry_run", bool, description="true: say what it would do, and keep nothing.")],
        request={"application/json": {"type": "object", "additionalProperties": {"type": "object"}}},
        responses={201: {"type": "object", "additionalProperties": {"type": "object"}}},
    )
    def post(self, request: Request) -> Response:
        """Any of ``pool``, ``backend``, ``tenant``, ``entitlement`` and ``key``, each with the fields that its own
        resource takes; a part refers to another by leaving its name out. All are made in one transaction, or none.
        The key's secret is in this answer only. For admins."""
        given = request.data if isinstance(request.data, dict) else {}
        unknown = [name for name in given if name not in (*self.PARTS, "key")]
        if unknown or not given:
            raise ValidationError(
                {name: ["There is no such part."] for name in unknown}
                or {"non_field_errors": [f"Give one or more of: {', '.join((*self.PARTS, 'key'))}."]}
            )
        if isinstance(given.get("backend"), dict):
            engine = given["pool"].get("engine") if isinstance(given.get("pool"), dict) else None
            backend = engine_figures.filled(given["backend"], engine_figures.WAIT_S, engine=engine)
            given = {**given, "backend": backend}
        if is_trial(request):
            return Response(preview.effects(self.actor, lambda: self._make(request, given)).as_dict())
        with services.change(actor=self.actor):
            saved = self._make(request, given)
        shown = {}
        for part, row in saved.items():
            if isinstance(row, services.Issued):
                row.row.refresh_from_db()
                shown[part] = rows.KeySerializer(row.row).data | {"key": row.credential.text}
            else:
                row.refresh_from_db()  # binding may have changed it after it was written
                shown[part] = self.PARTS[part][1](row, context={"request": request}).data
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    def _make(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for part, (model, serializer, refers_to) in self.PARTS.items():
            if part not in given:
                continue
            data = dict(given[part]) if isinstance(given[part], dict) else given[part]
            for other in refers_to:
                if other in rows and isinstance(data, dict):
                    data.setdefault(other, rows[other].slug)
            body = serializer(data=data, context={"request": request})
            rows[part] = self._kept(part, body, lambda values, m=model: self._save(m(**values)))
        if "key" in given:
            entitlement = rows.get("entitlement")
            if entitlement is None:
                raise ValidationError({"key": {"non_field_errors": ["A key needs an entitlement."]}})
            key = FirstKeySerializer(data=given["key"])
            rows["key"] = self._kept("key", key, lambda values: self._issue(entitlement, values))
        return rows

    def _save(self, row: Any) -> Any:
        return services.save(actor=self.actor, instance=row)

    def _issue(self, entitlement: Entitlement, values: dict[str, Any]) -> services.Issued:
        row: services.Issued = services.issue_key(actor=self.actor, entitlement=entitlement, **values)
        assert isinstance(row.row, ApiKey)
        return row

    def _kept(self, part: str, body: Any, write: Any) -> Any:
        """Checks and writes one part; its errors stand under its name."""
        try:
            body.is_valid(raise_exception=True)
            return write(body.validated_data)
        except ValidationError as error:
            raise ValidationError({part: error.detail}) from error
        except ModelValidationError as error:
            answer = as_answer(error)
            assert isinstance(answer, ValidationError)
            raise ValidationError({part: answer.detail}) from error
