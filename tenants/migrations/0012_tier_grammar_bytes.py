import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0011_token_made_with'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='tier',
            name='tier_figures_in_range',
        ),
        migrations.RemoveField(
            model_name='tier',
            name='safety_factor',
        ),
        migrations.AddConstraint(
            model_name='tier',
            constraint=models.CheckConstraint(condition=models.Q(('max_wait_s__gt', 0), ('weight__gt', 0)), name='tier_figures_in_range', violation_error_message='Weight and longest wait must be greater than 0.'),
        ),
        migrations.AddField(
            model_name='tier',
            name='max_grammar_bytes',
            field=models.PositiveIntegerField(default=131072, help_text='Largest schema, regex, grammar or list of choices of one request [bytes]: the engine compiles it before the first token. 0 allows no structured output.', validators=[django.core.validators.MaxValueValidator(131072)], verbose_name='largest grammar [bytes]'),
        ),
    ]
