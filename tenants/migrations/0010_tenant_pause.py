from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0009_headroom")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="paused_since",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="Since then new requests of its keys are refused; what had been admitted goes on.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="paused_reason",
            field=models.CharField(blank=True, editable=False, max_length=200),
        ),
    ]
