from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0004_coefficients_throughput'),
    ]

    operations = [
        migrations.AddField(
            model_name='pool',
            name='predictor',
            field=models.CharField(choices=[('off', 'off: every answer is expected to reach its bound'), ('history', "history: the key's past answers, else the prompt's category"), ('similar', 'similar: answers to similar prompts, else as history')], default='similar', help_text='How output lengths are foreseen. They order the queue; what is reserved and charged is the bound.', max_length=16),
        ),
        migrations.AddField(
            model_name='pool',
            name='tokenizer',
            field=models.CharField(blank=True, default='', help_text="Counts input tokens: the path of a tokenizer.json on the gateways, or 'backend' to ask an engine. Empty: estimated from words and bytes.", max_length=300),
        ),
    ]
