from django.db import migrations, models


class Migration(migrations.Migration):
    """New pools order by ``unified``; those that are there keep what they have."""

    dependencies = [("tenants", "0006_modifiers_routing")]

    operations = [
        migrations.AlterField(
            model_name="pool",
            name="policy",
            field=models.CharField(default="unified", help_text="The rule that orders the queue.", max_length=63),
        ),
    ]
