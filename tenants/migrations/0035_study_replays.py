"""A study's rows are called after what they are. The column keeps its name, so that the version before can be run again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0034_phases")]

    operations = [
        migrations.AlterField(
            "study",
            "told",
            models.JSONField(db_column="told", default=list, help_text="What each replay came to, in order."),
        ),
        migrations.RenameField("study", "told", "replays"),
    ]
