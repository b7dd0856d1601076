from __future__ import annotations

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_prefix_cache")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="prefill_credit",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="Prompt tokens that a backend may have before their first output token. Empty: found while "
                "it serves. 0: no bound, requests then wait inside the engine.",
                null=True,
                validators=[django.core.validators.MaxValueValidator(1000000)],
                verbose_name="prefill credit [tokens]",
            ),
        ),
    ]
