"""The schema of this release, and who may act in the dashboard."""

from django.db import migrations

from ..schema import HoldfastSchema


class Migration(migrations.Migration):
    atomic = False  # ours commit one by one
    dependencies = [("holdfast", "0001_schema")]
    operations = [
        HoldfastSchema(14),
        migrations.AlterModelOptions(
            name="job",
            options={
                "permissions": [
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("operate", "Is an operator of the dashboard"),
                    ("administer", "Is an admin of the dashboard"),
                ],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
