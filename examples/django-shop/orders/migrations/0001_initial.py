"""Orders and receipts."""

import django.db.models.deletion
from django.db import migrations, models

_KEY = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", _KEY.clone()),
                ("number", models.IntegerField(unique=True)),
                ("email", models.CharField(max_length=100)),
            ],
        ),
        migrations.CreateModel(
            name="Receipt",
            fields=[
                ("id", _KEY.clone()),
                ("sent_to", models.CharField(max_length=100)),
                (
                    "order",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="orders.order"),
                ),
            ],
        ),
    ]
