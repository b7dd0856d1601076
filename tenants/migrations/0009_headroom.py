import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0008_tuning'),
    ]

    operations = [
        migrations.AddField(
            model_name='pool',
            name='headroom_slots',
            field=models.PositiveIntegerField(default=0, help_text='The last free slots, kept for requests within a dedicated, guaranteed or elastic baseline, so that these need not wait for one to end. 0: all that is idle is lent.', validators=[django.core.validators.MaxValueValidator(100000)], verbose_name='headroom [slots]'),
        ),
    ]
