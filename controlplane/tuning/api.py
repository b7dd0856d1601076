"""A pool's policy versions, its trials, how it is tuned, and how far its lab can be trusted. For operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError as ModelError
from django.db.models import F, QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, extend_schema_serializer
from rest_framework import generics, serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.tuning import replicas
from controlplane.tuning.proposals import traffic_so_far
from telemetry.api.answers import OPTIONAL
from telemetry.api.common import Telemetry, viewer_of
from telemetry.models import Calibration
from tenants import drafts, tuning
from tenants.api import inputs
from tenants.api.serializers import Strict
from tenants.audit import Actor
from tenants.models import PolicyVersion, Pool, Study, Trial, TrialState, Tuning, TuningMode


class StaffOnly(Telemetry):
    """How pools are run is the operators' business: for members these pages do not exist."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if viewer_of(request).tenants is not None:
            raise Http404

    def pool(self) -> Pool:
        pool = Pool.objects.filter(slug=self.kwargs["pool"]).first()
        if pool is None:
            raise Http404
        return pool

    @property
    def actor(self) -> Actor:
        return Actor.of(self.request, "api")

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        handler = super().get_exception_handler()
        return lambda error, context: handler(_answer(error), context)


def _answer(error: Exception) -> Exception:
    if isinstance(error, ModelError):
        return ValidationError(error.message_dict if hasattr(error, "error_dict") else {"detail": error.messages})
    return error


class Page(inputs.Page):
    default_limit = 50
    max_limit = 500


class VersionSerializer(serializers.ModelSerializer[PolicyVersion]):
    parent = serializers.IntegerField(  # type: ignore[assignment]  # also an attribute of fields
        source="parent.number", default=None, allow_null=True, help_text="The version before it."
    )
    partition = serializers.CharField(help_text="Queue boundaries [tokens], of a policy that has any.")
    serving = serializers.SerializerMethodField(help_text="Whether it decides now.")

    class Meta:
        model = PolicyVersion
        fields = [
            "number", "parent", "restores", "at", "author_kind", "author", "reason", "policy", "policy_params",
            "modifiers", "routing", "routing_params", "room", "partition", "changes", "serving",
        ]  # fmt: skip

    def get_serving(self, version: PolicyVersion) -> bool:
        return version.number == version.pool.policy_version


class VersionsView(StaffOnly, generics.ListAPIView[PolicyVersion]):
    """Everything that has ever decided in a pool, newest first: who changed what, and why."""

    serializer_class = VersionSerializer
    pagination_class = Page
    queryset = PolicyVersion.objects.none()

    def get_queryset(self) -> QuerySet[PolicyVersion]:
        return PolicyVersion.objects.filter(pool=self.pool()).select_related("parent", "pool")

    @extend_schema(summary="Policy versions of a pool, newest first", operation_id="pools_versions")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)


class RollbackSerializer(Strict):
    version = serializers.IntegerField(min_value=1, help_text="Whose content is to serve again.")
    reason = serializers.CharField(max_length=250, required=False, default="", allow_blank=True)


class RollbackView(StaffOnly, APIView):
    @extend_schema(
        summary="Go back to an earlier policy version",
        operation_id="pools_rollback",
        request=RollbackSerializer,
        responses=VersionSerializer,
    )
    def post(self, request: Request, pool: str) -> Response:
        """Its content serves again, as a new version; a canary that runs ends."""
        body = RollbackSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        data = body.validated_data
        row = tuning.rollback(actor=self.actor, pool=self.pool(), number=data["version"], reason=data["reason"])
        return Response(VersionSerializer(tuning.version_now(row)).data)


@extend_schema_serializer(extensions={OPTIONAL: ["refused", "attainment", "points"]})
class TrustFiguresSerializer(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    figures = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField()), help_text="[live, simulated], seconds."
    )
    worst = serializers.FloatField(
        help_text="Largest relative difference of a latency. A median is compared with the nearest of the live "
        "latencies of 1.5 ranks in 100 around the live one: between two tiers it may move by seconds with one request."
    )
    trusted = serializers.BooleanField(
        help_text="Latencies within 10 %, and the attainment of every tier within 3 points."
    )
    refused = serializers.ListField(
        child=serializers.FloatField(),
        help_text="[live, simulated], % of what was asked for; missing where it was measured by an older release.",
    )
    attainment = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField()),
        help_text="By tier with an SLO: [live, simulated], % of what was asked for; missing as above.",
    )
    points = serializers.FloatField(help_text="Largest difference of a tier's attainment [points]; missing as above.")


class MeasuredTrustSerializer(TrustFiguresSerializer):
    """Simulated against live figures of a pool, as they were last measured."""

    at = serializers.DateTimeField()


class StudySerializer(serializers.ModelSerializer[Study]):
    """A study under way, or the last one."""

    base = serializers.IntegerField(source="base.number", help_text="The version that served when it began.")

    class Meta:
        model = Study
        exclude = ["id", "pool", "replays", "in_flight", "engines"]


class TrafficSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField(help_text="Only requests from then on count.")
    requests = serializers.IntegerField(help_text="So far; at most as many as are needed.")
    needed = serializers.IntegerField(help_text="The setting least_requests.")


class TuningSerializer(serializers.ModelSerializer[Tuning]):
    study = serializers.SerializerMethodField(
        help_text="The study under way, else the last one; null before the first."
    )
    effective = serializers.SerializerMethodField(help_text="All settings, defaults included.")
    trust = serializers.SerializerMethodField(
        help_text="How far the simulated figures of its trials are from live ones; null where that is not known."
    )

    waits = serializers.SerializerMethodField(
        help_text="Why winners wait to be started in automatic mode: simulated figures are further from live ones than "
        "the setting most_error, or nobody knows how far they are. Empty: they start by themselves."
    )

    traffic = serializers.SerializerMethodField(
        help_text="What the replay of a proposed trial still waits for; null where none waits."
    )

    class Meta:
        model = Tuning
        fields = ["mode", "settings", "effective", "trust", "waits", "study", "traffic"]

    @extend_schema_field(TrafficSerializer(allow_null=True))
    def get_traffic(self, row: Tuning) -> dict[str, Any] | None:
        waiting = Trial.objects.filter(pool_id=row.pool_id, state=TrialState.PROPOSED, reward=None, values={}, gate={})
        if not waiting.filter(window_from__gte=F("window_until")).exists():
            return None
        since, requests = traffic_so_far(row.pool, timezone.now())
        return {"since": since, "requests": requests, "needed": row.loop.least_requests}

    @extend_schema_field(StudySerializer(allow_null=True))
    def get_study(self, row: Tuning) -> dict[str, Any] | None:
        study = Study.objects.filter(pool_id=row.pool_id).select_related("base").defer("replays").first()
        return None if study is None else dict(StudySerializer(study).data)

    @extend_schema_field(MeasuredTrustSerializer(allow_null=True))
    def get_trust(self, row: Tuning) -> dict[str, Any] | None:
        return replicas.measured(row.pool.slug)

    def get_waits(self, row: Tuning) -> str:
        return replicas.doubt(row.pool.slug, row.loop.most_error, timezone.now())

    @extend_schema_field(serializers.DictField(child=serializers.FloatField()))
    def get_effective(self, row: Tuning) -> Mapping[str, float]:
        loop = row.loop
        return {name: getattr(loop, name) for name in type(loop).__slots__}


class TuningBody(Strict):
    mode = serializers.ChoiceField(choices=TuningMode.choices)
    settings = serializers.DictField(child=serializers.FloatField(), required=False)


class TuningView(StaffOnly, APIView):
    """How a pool is tuned: off, advise or automatic, and the loop's settings."""

    @extend_schema(summary="Read how a pool is tuned", operation_id="pools_tuning", responses=TuningSerializer)
    def get(self, request: Request, pool: str) -> Response:
        return Response(TuningSerializer(tuning.tuning_of(self.pool())).data)

    @extend_schema(
        summary="Change how a pool is tuned",
        operation_id="pools_tuning_set",
        request=TuningBody,
        responses=TuningSerializer,
    )
    def put(self, request: Request, pool: str) -> Response:
        """Off ends a canary: the version before it serves again."""
        body = TuningBody(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data.get("settings")
        settings = None if given is None else {k: int(v) if v == int(v) else v for k, v in given.items()}
        row = tuning.set_tuning(actor=self.actor, pool=self.pool(), mode=body.validated_data["mode"], settings=settings)
        return Response(TuningSerializer(row).data)


class StudyStopView(StaffOnly, APIView):
    http_method_names = ("post", "options")

    @extend_schema(
        summary="Stop the study under way", operation_id="pools_study_stop", request=None, responses=TuningSerializer
    )
    def post(self, request: Request, pool: str) -> Response:
        """It ends without a result; the next one comes when it is due. Without one under way nothing happens."""
        row = self.pool()
        tuning.stop_study(actor=self.actor, pool=row, reason=f"{self.actor.name} stopped it")
        return Response(TuningSerializer(tuning.tuning_of(row)).data)


class TrialSerializer(serializers.ModelSerializer[Trial]):
    base = serializers.IntegerField(source="base.number", help_text="The version that served when it was made.")
    version = serializers.IntegerField(
        source="version.number", default=None, allow_null=True, help_text="Its own, once it has served."
    )

    class Meta:
        model = Trial
        exclude = ["pool"]


class RoomSerializer(Strict):
    prefill_credit = serializers.IntegerField(min_value=0, allow_null=True, required=False, help_text="Null: automatic")
    headroom_slots = serializers.IntegerField(min_value=0, allow_null=True, required=False, help_text="Null: automatic")


class TriedObjectSerializer(Strict):
    """Another object than the pool that a trial changes."""

    kind = serializers.ChoiceField(choices=list(drafts.FIELDS))
    name = serializers.CharField(max_length=63)
    values = serializers.DictField(allow_empty=False, help_text="Fields of the object, with the values to try.")


class DraftSerializer(Strict):
    """What a trial changes of a pool; what is not named stays as it is."""

    policy = serializers.CharField(max_length=63, required=False)
    policy_params = serializers.DictField(required=False)
    modifiers = serializers.DictField(child=serializers.DictField(), required=False)
    routing = serializers.CharField(max_length=63, required=False)
    routing_params = serializers.DictField(required=False)
    room = RoomSerializer(required=False)
    objects = TriedObjectSerializer(many=True, required=False, max_length=drafts.MOST_OBJECTS)  # type: ignore[call-arg]


class WindowSerializer(Strict):
    since = inputs.Moment(help_text="Its beginning.")
    until = inputs.Moment(help_text="Its end, a day later at most.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not timedelta(0) < attrs["until"] - attrs["since"] <= timedelta(days=1):
            raise serializers.ValidationError({"until": "Choose a moment after the beginning, a day later at most."})
        return attrs


class Proposal(Strict):
    params = serializers.DictField(
        required=False, help_text="All parameters of the serving policy that are not its defaults."
    )
    setting = DraftSerializer(required=False, help_text="Or any change.")
    window = WindowSerializer(
        required=False, help_text="The traffic that it is replayed on. Missing: the latest, as tuning takes it."
    )
    reason = serializers.CharField(max_length=250, required=False, default="", allow_blank=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("params" in attrs) == ("setting" in attrs):
            raise serializers.ValidationError("Give either params or a setting.")
        return attrs


class TrialsView(StaffOnly, generics.ListAPIView[Trial]):
    """What the optimiser has tried in a pool, newest first, and what became of it."""

    serializer_class = TrialSerializer
    pagination_class = Page
    queryset = Trial.objects.none()

    def get_queryset(self) -> QuerySet[Trial]:
        rows = Trial.objects.filter(pool=self.pool()).select_related("base", "version")
        wanted = self.request.query_params.get("state")
        if wanted and wanted not in TrialState.values:
            raise serializers.ValidationError({"state": f"Use one of {', '.join(TrialState.values)}."})
        return rows.filter(state=wanted) if wanted else rows

    @extend_schema(
        summary="Trials of a pool, newest first",
        operation_id="pools_trials",
        parameters=[OpenApiParameter("state", str, enum=TrialState.values, description="Only those in this state.")],
    )
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        summary="Propose a trial",
        operation_id="pools_trials_create",
        request=Proposal,
        responses={201: TrialSerializer},
    )
    def post(self, request: Request, pool: str) -> Response:
        """Other parameters of the serving policy, or any other change: order, modifiers, routing, credit, headroom,
        and shares, tiers and slots. That it fits is checked at once; it is then replayed on a window of traffic against
        what serves. Nothing changes before it is started."""
        body = Proposal(data=request.data)
        body.is_valid(raise_exception=True)
        data = body.validated_data
        window = (data["window"]["since"], data["window"]["until"]) if "window" in data else None
        arguments: dict[str, Any] = {
            "actor": self.actor,
            "pool": self.pool(),
            "reason": data["reason"],
            "window": window,
        }
        if "setting" in data:
            row = tuning.propose_setting(setting=data["setting"], **arguments)
        else:
            row = tuning.propose(params=data["params"], **arguments)
        return Response(TrialSerializer(row).data, status=status.HTTP_201_CREATED)


class TrialView(StaffOnly, APIView):
    """One trial."""

    def trial(self) -> Trial:
        rows = Trial.objects.filter(pool=self.pool()).select_related("base", "version")
        trial = rows.filter(pk=self.kwargs["trial"]).first()
        if trial is None:
            raise Http404
        return trial

    @extend_schema(summary="Read a trial", operation_id="pools_trial", responses=TrialSerializer)
    def get(self, request: Request, pool: str, trial: int) -> Response:
        return Response(TrialSerializer(self.trial()).data)


class StartSerializer(Strict):
    minutes = serializers.FloatField(
        min_value=1, max_value=1440, required=False, help_text="How long it serves. Missing: one interval of tuning."
    )


class TrialStartView(TrialView):
    http_method_names = ("post", "options")

    @extend_schema(
        summary="Start a proposed trial",
        operation_id="pools_trial_start",
        request=StartSerializer,
        responses=TrialSerializer,
    )
    def post(self, request: Request, pool: str, trial: int) -> Response:
        """It serves the pool for one interval, or for as long as is asked, watched by the guard rails."""
        body = StartSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        minutes = body.validated_data.get("minutes")
        proposed, started = self.trial(), f"{self.actor.name} started it"
        reason = f"{proposed.reason[:240]}; {started}" if proposed.reason else started
        for_s = None if minutes is None else 60.0 * minutes
        row = tuning.start_canary(actor=self.actor, trial=proposed, reason=reason, for_s=for_s)
        return Response(TrialSerializer(row).data, status=status.HTTP_201_CREATED)


class TrialStopView(TrialView):
    http_method_names = ("post", "options")

    @extend_schema(summary="End a trial", operation_id="pools_trial_stop", request=None, responses=TrialSerializer)
    def post(self, request: Request, pool: str, trial: int) -> Response:
        """A canary gives its place back; a proposal is rejected. One that has ended stays as it is."""
        row = self.trial()
        state = TrialState.ROLLED_BACK if row.state == TrialState.CANARY else TrialState.REJECTED
        tuning.close(actor=self.actor, trial=row, state=state, reason=f"{self.actor.name} ended it")
        return Response(TrialSerializer(self.trial()).data)


class TrialKeepView(TrialView):
    http_method_names = ("post", "options")

    @extend_schema(
        summary="Keep a trial that serves", operation_id="pools_trial_keep", request=None, responses=TrialSerializer
    )
    def post(self, request: Request, pool: str, trial: int) -> Response:
        """It ends before its time and stays active. One that does not serve stays as it is."""
        row = self.trial()
        if row.state == TrialState.CANARY:
            reason = f"{self.actor.name} kept it"
            tuning.close(actor=self.actor, trial=row, state=TrialState.PROMOTED, reason=reason)
        return Response(TrialSerializer(self.trial()).data)


class TrustQuery(serializers.Serializer[Any]):
    minutes = serializers.FloatField(min_value=0.1, max_value=1440, default=10.0)


class CalibrationSerializer(serializers.ModelSerializer[Calibration]):
    class Meta:
        model = Calibration
        exclude = ["id", "pool"]


class TrustSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    minutes = serializers.FloatField()
    trust = TrustFiguresSerializer(allow_null=True, help_text="Null where there was nothing to compare.")
    calibrations = CalibrationSerializer(many=True)


class TrustView(StaffOnly, APIView):
    @extend_schema(
        summary="How far a pool's lab can be trusted",
        operation_id="pools_trust",
        parameters=[TrustQuery],
        responses=TrustSerializer,
    )
    def get(self, request: Request, pool: str) -> Response:
        """Simulated against live on the last minutes: [live, simulated] seconds of p50 and p95, first and last token;
        null where there was nothing to compare. With the calibration behind it, and what earlier ones were worth."""
        query = TrustQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        row, now = self.pool(), timezone.now()
        trust = replicas.trust(row, now - timedelta(minutes=query.validated_data["minutes"]), now)
        calibrations = Calibration.objects.filter(pool=row.slug)[:50]
        return Response(
            {
                "pool": row.slug,
                "minutes": query.validated_data["minutes"],
                "trust": trust.as_json() if trust is not None else None,
                "calibrations": CalibrationSerializer(calibrations, many=True).data,
            }
        )
