"""The policy lab: recordings to choose from, runs with their progress and results. For operators and admins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_serializer
from rest_framework import generics, serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.lab import runs
from controlplane.tuning import replicas
from controlplane.tuning.api import MeasuredTrustSerializer, Page, StaffOnly, TriedObjectSerializer
from scheduling.core.policies.registry import PolicyError
from telemetry.api.answers import OPTIONAL
from telemetry.models import LabRecording, LabRun
from tenants import drafts
from tenants.api.inputs import BoundedJSONParser, Moment
from tenants.api.serializers import Strict
from tenants.models import Pool

NOT_NOTIFIED = "The workers could not be told: Redis does not answer. The run begins within two minutes of its return."


LONGEST_MINUTES = 44_640  # of a pool's traffic in one recording


class _Lab(StaffOnly):
    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        handler = super().get_exception_handler()
        return lambda error, context: handler(
            ValidationError({"detail": str(error)}) if isinstance(error, runs.LabError | PolicyError) else error,
            context,
        )

    @staticmethod
    def named(slug: str) -> Pool:
        pool = Pool.objects.filter(slug=slug).first()
        if pool is None:
            raise ValidationError({"pool": f"There is no pool {slug!r}."})
        return pool


class RecordingSerializer(serializers.ModelSerializer[LabRecording]):
    class Meta:
        model = LabRecording
        exclude = ["packed"]


class NewRecording(Strict):
    name = serializers.CharField(max_length=100)
    pool = serializers.CharField(required=False, help_text="Whose traffic; else bring a file.")
    minutes = serializers.FloatField(
        min_value=0.1, max_value=LONGEST_MINUTES, required=False, help_text="The last ones. Missing: 60."
    )
    since = Moment(required=False, help_text="Or from here ...")
    until = Moment(required=False, help_text="... to here, 31 days later at most.")
    file = serializers.FileField(required=False, help_text="A recording or trace, as `lab compare` reads them.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("pool" in attrs) == ("file" in attrs):
            raise ValidationError("Give either a pool or a file.")
        given = attrs.keys() & {"minutes", "since", "until"}
        if given not in (set(), {"minutes"}, {"since", "until"}) or ("file" in attrs and given):
            raise ValidationError("Give minutes, or since and until; neither with a file.")
        if "since" in attrs and not (
            timedelta(0) < attrs["until"] - attrs["since"] <= timedelta(minutes=LONGEST_MINUTES)
        ):
            raise ValidationError({"until": "Choose a moment after since, 31 days later at most."})
        return attrs


class RecordingsView(_Lab, generics.ListAPIView[LabRecording]):
    """Recordings that runs can choose."""

    serializer_class = RecordingSerializer
    pagination_class = Page
    parser_classes = [BoundedJSONParser, MultiPartParser]
    queryset = LabRecording.objects.defer("packed")

    @extend_schema(summary="Recordings of the lab", operation_id="lab_recordings")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        summary="Keep a recording",
        operation_id="lab_recordings_create",
        request=NewRecording,
        responses={201: RecordingSerializer},
    )
    def post(self, request: Request) -> Response:
        """A pool's last minutes, its traffic between two moments, or a file. It stays when the ledger has forgotten."""
        body = NewRecording(data=request.data)
        body.is_valid(raise_exception=True)
        data, author = body.validated_data, self.actor.name
        if "file" in data:
            row = runs.keep_trace(data=data["file"].read(runs.LARGEST_TRACE + 1), name=data["name"], author=author)
        else:
            pool = self.named(data["pool"])
            since = data.get("since") or timezone.now() - timedelta(minutes=data.get("minutes", 60.0))
            row = runs.keep_window(pool=pool, since=since, until=data.get("until"), name=data["name"], author=author)
        return Response(RecordingSerializer(row).data, status=status.HTTP_201_CREATED)


class NewcomerSerializer(Strict):
    """A tenant that was not there."""

    name = serializers.CharField(max_length=63, help_text="Of the tenant and its entitlement; nobody has it yet.")
    like = serializers.CharField(max_length=63, help_text="The entitlement whose share, tier and requests it has.")
    times = serializers.FloatField(default=1.0, help_text="Its requests as a share of theirs, 0.1 to 10.")


@extend_schema_serializer(extensions={OPTIONAL: ["load", "objects", "lost", "newcomers"]})
class AskedSerializer(serializers.Serializer[Any]):
    """What a run is about. Runs of earlier releases lack the last four."""

    policies = serializers.ListField(child=serializers.CharField())
    variants = serializers.IntegerField()
    replicas = serializers.IntegerField(help_text="0: as many as the pool has.")
    slos = serializers.DictField(
        child=serializers.DictField(child=serializers.FloatField(allow_null=True)), allow_null=True
    )
    load = serializers.FloatField(help_text="Times the recorded one.")
    objects = TriedObjectSerializer(many=True)
    lost = serializers.ListField(child=serializers.CharField(), help_text="Backends taken as gone.")
    newcomers = NewcomerSerializer(many=True)


@extend_schema_field(AskedSerializer)
class AskedField(serializers.JSONField):
    """As it is stored."""


class SpreadSerializer(serializers.Serializer[Any]):
    """A mean over variants and its 95 % interval; of one variant ``low`` and ``high`` are the mean, and say nothing."""

    mean = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class DifferenceSerializer(SpreadSerializer):
    sure = serializers.BooleanField(help_text="The interval leaves out 0; never of one variant, which has no interval.")


@extend_schema_serializer(extensions={OPTIONAL: ["difference"]})
class ResultSerializer(SpreadSerializer):
    policy = serializers.CharField()
    group = serializers.CharField()
    figure = serializers.CharField()
    variants = serializers.IntegerField(help_text="That every policy has.")
    difference = DifferenceSerializer(help_text="To the first policy, in pairs; missing for that one.")


class RunSerializer(serializers.ModelSerializer[LabRun]):
    recording = serializers.CharField(source="recording.name")
    asked = AskedField(read_only=True, help_text="Policies, and what is supposed.")

    class Meta:
        model = LabRun
        exclude = ["figures", "moved_at"]


class RunResultsSerializer(RunSerializer):
    """A run with its figures so far."""

    results = serializers.SerializerMethodField()
    trust = serializers.SerializerMethodField()

    @extend_schema_field(ResultSerializer(many=True))
    def get_results(self, run: LabRun) -> list[dict[str, Any]]:
        return runs.table(run)

    @extend_schema_field(MeasuredTrustSerializer(allow_null=True))
    def get_trust(self, run: LabRun) -> dict[str, Any] | None:
        return replicas.measured(run.pool)


class AcceptedSerializer(RunSerializer):
    """A run that was just asked for."""

    notice = serializers.SerializerMethodField(help_text="Empty, or why the run does not begin at once.")

    def get_notice(self, run: LabRun) -> str:
        return "" if self.context["notified"] else NOT_NOTIFIED


def accepted(run: LabRun) -> Response:
    """Tells the workers and answers at once, whether they could be told or not."""
    context = {"notified": runs.notify(run.pk)}
    return Response(AcceptedSerializer(run, context=context).data, status=status.HTTP_202_ACCEPTED)


class NewRun(Strict):
    name = serializers.CharField(max_length=100)
    recording = serializers.CharField()
    pool = serializers.CharField(help_text="Whose engines, limits and policy are taken.")
    policies = serializers.ListField(
        child=serializers.CharField(max_length=4000),
        help_text="'now', [MODIFIER+...]NAME[:PARAMETER=VALUE,...], or 'unchanged': the active policy without what the "
        "run changes.",
    )
    variants = serializers.IntegerField(default=5)
    replicas = serializers.IntegerField(default=0)
    slos = serializers.DictField(child=serializers.DictField(child=serializers.FloatField()), default=dict)
    load = serializers.FloatField(default=1.0, help_text="Requests come so many times as fast, 0.1 to 10.")
    objects = TriedObjectSerializer(many=True, default=list, max_length=drafts.MOST_OBJECTS)  # type: ignore[call-arg]
    lost = serializers.ListField(
        child=serializers.CharField(max_length=63), default=list, max_length=runs.MAX_REPLICAS,
        help_text="Backends taken as gone; shares that cannot be kept without them are degraded.",
    )  # fmt: skip
    newcomers = NewcomerSerializer(many=True, default=list, max_length=runs.MAX_NEWCOMERS)  # type: ignore[call-arg]


class RunsView(_Lab, generics.ListAPIView[LabRun]):
    """What was tried, newest first."""

    serializer_class = RunSerializer
    pagination_class = Page
    queryset = LabRun.objects.none()

    def get_queryset(self) -> QuerySet[LabRun]:
        return LabRun.objects.select_related("recording").defer("figures", "recording__packed")

    @extend_schema(summary="Runs of the lab, newest first", operation_id="lab_runs")
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        summary="Try policies on a recording",
        operation_id="lab_runs_create",
        request=NewRun,
        responses={202: AcceptedSerializer},
    )
    def post(self, request: Request) -> Response:
        """Workers get on with it; read the run to see how far it is."""
        body = NewRun(data=request.data)
        body.is_valid(raise_exception=True)
        data = body.validated_data
        recording = LabRecording.objects.filter(name=data["recording"]).first()
        if recording is None:
            raise ValidationError({"recording": f"There is no recording {data['recording']!r}."})
        same = {name: data[name] for name in ("variants", "replicas", "load", "objects", "lost", "newcomers")}
        spec = runs.RunSpec(tuple(data["policies"]), slos=data["slos"] or None, **same)
        run = runs.ask(
            recording=recording, pool=self.named(data["pool"]), spec=spec, name=data["name"], author=self.actor.name
        )
        return accepted(run)


class RunView(_Lab, APIView):
    """One run."""

    def run(self) -> LabRun:
        run = LabRun.objects.select_related("recording").filter(pk=self.kwargs["run"]).first()
        if run is None:
            raise Http404
        return run

    @extend_schema(summary="Read a lab run", operation_id="lab_run", responses=RunResultsSerializer)
    def get(self, request: Request, run: int) -> Response:
        """With its figures so far: each one's mean, its 95 % interval, and the paired difference to the
        first policy. ``trust``: how far the pool's simulated figures were from live when that was last measured, null
        where it never was."""
        return Response(RunResultsSerializer(self.run()).data)


class RunCancelView(RunView):
    http_method_names = ("post", "options")

    @extend_schema(summary="Cancel a lab run", operation_id="lab_run_cancel", request=None, responses=RunSerializer)
    def post(self, request: Request, run: int) -> Response:
        """What was done stays to be read."""
        return Response(RunSerializer(runs.cancel(self.run())).data)


class RunAgainView(RunView):
    http_method_names = ("post", "options")

    @extend_schema(
        summary="Do a lab run again", operation_id="lab_run_again", request=None, responses={202: AcceptedSerializer}
    )
    def post(self, request: Request, run: int) -> Response:
        """The same question about the same recording, on the pool's engines as they are now."""
        row = runs.again(self.run(), self.actor.name)
        return accepted(row)
