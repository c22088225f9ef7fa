"""The schema of this release."""

from django.db import migrations

from ..schema import HoldfastSchema


class Migration(migrations.Migration):
    atomic = False  # ours commit one by one
    dependencies = [("holdfast", "0005_schema_17")]
    operations = [HoldfastSchema(18)]
