from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('telemetry', '0026_interruptions'),
    ]

    operations = [
        migrations.AddField(
            model_name='ledgerentry',
            name='sequences',
            field=models.PositiveIntegerField(db_default=1, default=1, help_text='Places that it takes while it runs: its answers, or prompts.'),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='ran_before_s',
            field=models.FloatField(db_default=0.0, default=0.0, help_text='How long it ran after it was queued, in attempts that were interrupted or failed [s]. It is no part of its wait.'),
        ),
    ]
