from django.db import migrations, models

import tenants.validators


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_pool_estimates")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="modifiers",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text='What is laid around the policy, by name with parameters, such as {"bands": {}, "fair": {}}.',
                validators=[tenants.validators.validate_modifiers],
            ),
        ),
        migrations.AddField(
            model_name="pool",
            name="routing",
            field=models.CharField(default="least_work", help_text="The rule that chooses the backend.", max_length=63),
        ),
        migrations.AddField(
            model_name="pool",
            name="routing_params",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text='The routing\'s parameters by name, such as {"skew_tokens": 4096}.',
                validators=[tenants.validators.validate_policy_params],
                verbose_name="routing parameters",
            ),
        ),
        migrations.AlterField(
            model_name="pool",
            name="policy_version",
            field=models.PositiveIntegerField(
                default=1,
                editable=False,
                help_text="Counts changes of policy, modifiers, routing or their parameters.",
            ),
        ),
    ]
