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
    ]
