"""The contracts that come with the product: premium, standard and batch, and the SLOs behind them."""

from django.db import migrations

SLOS = (
    ("interactive", "People read along.", {"ttft_s": 1.0, "tbt_s": 0.1}),
    ("relaxed", "People wait a moment.", {"ttft_s": 5.0, "tbt_s": 0.2}),
    ("bulk", "Nobody waits in front of a screen.", {"ttlt_s": 600.0}),
)
TIERS = (
    {
        "slug": "premium", "description": "Reserved capacity, first in line.", "service_class": "guaranteed",
        "rank": 0, "weight": 50.0, "slo": "interactive", "safety_factor": 1.2, "over_limit": "refuse",
        "queue_limit": 100, "max_wait_s": 30.0,
    },
    {
        "slug": "standard", "description": "A baseline over time.", "service_class": "elastic",
        "rank": 1, "weight": 30.0, "slo": "relaxed", "safety_factor": 1.0, "over_limit": "refuse",
        "queue_limit": 500, "max_wait_s": 60.0,
    },
    {
        "slug": "batch", "description": "What is left over; waits instead of being refused.", "service_class": "spot",
        "rank": 2, "weight": 20.0, "slo": "bulk", "safety_factor": 0.8, "over_limit": "wait",
        "queue_limit": 5000, "max_wait_s": 600.0,
    },
)


def ship(apps, schema_editor):
    slo_model, tier_model = apps.get_model("tenants", "Slo"), apps.get_model("tenants", "Tier")
    slos = {
        slug: slo_model.objects.create(slug=slug, description=description, **targets)
        for slug, description, targets in SLOS
    }
    for tier in TIERS:
        tier_model.objects.create(**tier | {"slo": slos[tier["slo"]]})
    apps.get_model("tenants", "CatalogVersion").objects.create(id=1)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_books")]
    operations = [migrations.RunPython(ship, migrations.RunPython.noop)]
