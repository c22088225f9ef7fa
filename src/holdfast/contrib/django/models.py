"""What Django's admin shows: our tables and views, which Django never makes, changes or deletes."""

from typing import ClassVar

from django.db import models

_SCHEMA = 'holdfast"."'  # Django puts the name in quotes as a whole


class Job(models.Model):
    """Every job: live, finished or dead."""

    id = models.UUIDField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    status = models.TextField()
    priority = models.SmallIntegerField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    partition_key = models.TextField(null=True)
    created_at = models.DateTimeField()
    available_at = models.DateTimeField("due at")
    claimed_by = models.TextField("worker", null=True)
    completed_at = models.DateTimeField("ended at", null=True)
    last_error = models.TextField(null=True)
    hold_reason = models.TextField("held because", null=True)

    class Meta:
        managed = False
        db_table = f"{_SCHEMA}jobs"
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("operate", "Is an operator of the dashboard"),
            ("administer", "Is an admin of the dashboard"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.pk}"


class DeadLetter(models.Model):
    """A job that will not run again by itself."""

    id = models.UUIDField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    attempts = models.IntegerField()
    partition_key = models.TextField(null=True)
    created_at = models.DateTimeField()
    died_at = models.DateTimeField()
    claimed_by = models.TextField("worker", null=True)
    last_error = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = f"{_SCHEMA}dead_letters"
        default_permissions = ("view",)
        permissions: ClassVar = [("redrive_deadletter", "Can redrive dead letters")]

    def __str__(self) -> str:
        return f"{self.task} {self.pk}"


class Worker(models.Model):
    """A worker that runs, or ran lately."""

    id = models.TextField(primary_key=True)
    host = models.TextField()
    pid = models.IntegerField()
    status = models.TextField()
    started_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    queues = (
        models.TextField()
    )  # an array: an ArrayField would need django.contrib.postgres in INSTALLED_APPS
    concurrency = models.IntegerField()
    release = models.TextField()

    class Meta:
        managed = False
        db_table = f"{_SCHEMA}workers"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.pk)
