from django.db import migrations, models

import tenants.validators


class Migration(migrations.Migration):
    """New pools place by prefix; those that exist keep what they have."""

    dependencies = [("tenants", "0014_pool_prefill_credit")]

    operations = [
        migrations.AlterField(
            model_name="pool",
            name="routing",
            field=models.CharField(
                default="prefix_affinity", help_text="The rule that chooses the backend.", max_length=63
            ),
        ),
        migrations.AlterField(
            model_name="pool",
            name="routing_params",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text='The routing\'s parameters by name, such as {"skew_tokens": 100000}.',
                validators=[tenants.validators.validate_policy_params],
                verbose_name="routing parameters",
            ),
        ),
    ]
