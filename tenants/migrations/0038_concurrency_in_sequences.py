"""What an entitlement's concurrency counts is said where it is set; no column changes."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0037_study_engines"),
    ]

    operations = [
        migrations.AlterField(
            model_name="entitlement",
            name="concurrency",
            field=models.PositiveIntegerField(
                default=8,
                help_text="Sequences that may run at once: a request of several answers or prompts takes as many, up to "
                "16.",
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
    ]
