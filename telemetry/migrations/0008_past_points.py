from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0007_alert_rules")]

    operations = [
        migrations.CreateModel(
            name="PastPoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("pool", models.CharField(max_length=63)),
                ("step_s", models.PositiveSmallIntegerField(verbose_name="step [s]")),
                ("at", models.BigIntegerField(help_text="Beginning of the step, epoch seconds.")),
                ("point", models.TextField(help_text="JSON, as docs/reference/feed.md describes a point.")),
            ],
            options={
                "indexes": [models.Index(fields=["step_s", "at"], name="past_point_age")],
                "constraints": [models.UniqueConstraint(fields=("pool", "step_s", "at"), name="past_point_once")],
            },
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="admission",
            field=models.CharField(
                blank=True, default="", help_text="JSON: the figures that it was admitted by.", max_length=300
            ),
        ),
        migrations.AlterField(
            model_name="ledgerentry",
            name="reason",
            field=models.CharField(
                choices=[
                    ("stop", "stop"),
                    ("length", "length"),
                    ("no_key", "no key"),
                    ("not_entitled", "not entitled"),
                    ("tenant_paused", "tenant paused"),
                    ("unknown_model", "unknown model"),
                    ("invalid_request", "invalid request"),
                    ("too_large", "too large"),
                    ("too_long", "too long"),
                    ("slow_request", "slow request"),
                    ("concurrency", "concurrency"),
                    ("token_budget", "token budget"),
                    ("kv_budget", "kv budget"),
                    ("low_priority", "low priority"),
                    ("quota_exceeded", "quota exceeded"),
                    ("queue_full", "queue full"),
                    ("queue_timeout", "queue timeout"),
                    ("no_backend", "no backend"),
                    ("rebuilding", "rebuilding"),
                    ("state_unavailable", "state unavailable"),
                    ("shutting_down", "shutting down"),
                    ("backend_error", "backend error"),
                    ("backend_lost", "backend lost"),
                    ("backend_stalled", "backend stalled"),
                    ("gateway_lost", "gateway lost"),
                    ("evicted", "evicted"),
                    ("lease_lost", "lease lost"),
                    ("deadline", "deadline"),
                    ("slow_reader", "slow reader"),
                    ("internal", "internal"),
                    ("client_left", "client left"),
                    ("operator", "operator"),
                ],
                max_length=32,
            ),
        ),
    ]
