"""The schema of this release, and what Django's admin shows of it."""

from django.db import migrations, models

from ..schema import HoldfastSchema


class Migration(migrations.Migration):
    initial = True
    atomic = False  # ours commit one by one
    dependencies = []
    operations = [
        HoldfastSchema(11),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("task", models.TextField()),
                ("queue", models.TextField()),
                ("attempts", models.IntegerField()),
                ("partition_key", models.TextField(null=True)),
                ("created_at", models.DateTimeField()),
                ("died_at", models.DateTimeField()),
                ("claimed_by", models.TextField(null=True, verbose_name="worker")),
                ("last_error", models.TextField(null=True)),
            ],
            options={
                "db_table": 'holdfast"."dead_letters',
                "permissions": [("redrive_deadletter", "Can redrive dead letters")],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("task", models.TextField()),
                ("queue", models.TextField()),
                ("status", models.TextField()),
                ("priority", models.SmallIntegerField()),
                ("attempts", models.IntegerField()),
                ("max_attempts", models.IntegerField()),
                ("partition_key", models.TextField(null=True)),
                ("created_at", models.DateTimeField()),
                ("available_at", models.DateTimeField(verbose_name="due at")),
                ("claimed_by", models.TextField(null=True, verbose_name="worker")),
                ("completed_at", models.DateTimeField(null=True, verbose_name="ended at")),
                ("last_error", models.TextField(null=True)),
                ("hold_reason", models.TextField(null=True, verbose_name="held because")),
            ],
            options={
                "db_table": 'holdfast"."jobs',
                "permissions": [("retry_job", "Can retry jobs"), ("cancel_job", "Can cancel jobs")],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("host", models.TextField()),
                ("pid", models.IntegerField()),
                ("status", models.TextField()),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                ("queues", models.TextField()),
                ("concurrency", models.IntegerField()),
                ("release", models.TextField()),
            ],
            options={
                "db_table": 'holdfast"."workers',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
