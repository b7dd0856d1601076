"""A study keeps what was in flight when it began, which its window has too."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0035_study_replays"),
    ]

    operations = [
        migrations.AddField(
            model_name="study",
            name="in_flight",
            field=models.JSONField(
                db_default=models.Value([], models.JSONField()),
                default=list,
                help_text="What waited and ran when it began, while it runs: its window has them too.",
            ),
        ),
    ]
