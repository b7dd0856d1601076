from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0022_figures_of_lab_runs"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["outcome", "received_at", "id", "reason"], name="ledger_outcome_received"),
        ),
        migrations.RemoveIndex(
            model_name="ledgerentry",
            name="ledger_outcome_reason",
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(fields=["user", "received_at"], name="ledger_user_received"),
        ),
    ]
