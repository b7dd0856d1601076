from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('telemetry', '0025_alert_began'),
    ]

    operations = [
        migrations.AddField(
            model_name='ledgerentry',
            name='interruptions',
            field=models.IntegerField(db_default=0, default=0, help_text='How often its prefill was interrupted for a better tier.'),
        ),
    ]
