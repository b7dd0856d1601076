"""A study keeps the engines that it replays on, so that all of its replays are of the same ones."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0036_study_in_flight"),
    ]

    operations = [
        migrations.AddField(
            model_name="study",
            name="engines",
            field=models.JSONField(
                db_default=models.Value({}, models.JSONField()),
                default=dict,
                help_text="The replicas that it replays on, as they were known when it began, while it runs.",
            ),
        ),
    ]
