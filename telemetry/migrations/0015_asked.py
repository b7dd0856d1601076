from django.db import migrations, models


class Migration(migrations.Migration):
    """Attainment counts refusals."""

    dependencies = [
        ("telemetry", "0014_texts"),
    ]

    operations = [
        migrations.AddField(
            model_name="usagehour",
            name="slo_turned_away",
            field=models.BigIntegerField(
                help_text="With 429 or 503; unknown in hours of older releases.",
                null=True,
                verbose_name="refused with an SLO",
            ),
        ),
    ]
