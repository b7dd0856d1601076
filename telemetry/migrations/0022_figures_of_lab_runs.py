from django.db import migrations, models


class Migration(migrations.Migration):
    """The column keeps its name: releases before this one read and write it."""

    dependencies = [
        ('telemetry', '0021_reserved'),
    ]

    operations = [
        migrations.AlterField(
            model_name='labrun',
            name='found',
            field=models.JSONField(db_column='found', default=dict, help_text='Policy and variant -> figures.'),
        ),
        migrations.RenameField(
            model_name='labrun',
            old_name='found',
            new_name='figures',
        ),
    ]
