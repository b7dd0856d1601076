from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('telemetry', '0029_usage_retries'),
    ]

    operations = [
        migrations.AddField(
            model_name='usagehour',
            name='tokens_unknown',
            field=models.BigIntegerField(help_text='Lost with their gateway, and in none of the sums of tokens; unknown in hours of older releases.', null=True, verbose_name='requests of unknown tokens'),
        ),
    ]
