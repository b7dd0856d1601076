from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0010_idempotency_reasons")]

    operations = [
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["entitlement", "received_at"], name="ledger_entitlement_received"),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["key_id", "received_at"], name="ledger_key_received"),
        ),
    ]
