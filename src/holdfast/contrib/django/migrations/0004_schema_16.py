"""The schema of this release."""

from django.db import migrations

from ..schema import HoldfastSchema


class Migration(migrations.Migration):
    atomic = False  # ours commit one by one
    dependencies = [("holdfast", "0003_schema_15")]
    operations = [HoldfastSchema(16)]
