import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0010_tenant_pause")]

    operations = [
        migrations.AddField(
            model_name="accesstoken",
            name="made_with",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                help_text="The token it was made with, which it does not outlive. None: made by a session or a command.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="made",
                to="tenants.accesstoken",
            ),
        ),
    ]
