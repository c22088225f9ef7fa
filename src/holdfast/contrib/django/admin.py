"""Jobs, dead letters and workers in Django's admin: lists to read, and the verbs of an operator for whoever may."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from ...errors import HoldfastError
from ...model.actor import Actor, is_address
from ...operate.dead import redrive_verb
from ...operate.job_acts import RETRY, Verb, cancel_verb
from ...operate.operator import Operator
from .models import DeadLetter, Job, Worker
from .project import app

MOST = 1000  # that are acted on in one request
_COUNTED = 10_000  # rows: a list that is longer says so, and is not counted to its end


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    @cached_property
    def count(self) -> int:
        return int(self.object_list[:_COUNTED].count())  # type: ignore[attr-defined]


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Nothing is added, changed or deleted by a form."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Any]":
        return super().get_queryset(request).using(app.options.database)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def act(self, request: HttpRequest, queryset: "QuerySet[Any]", verb: Verb, done: str) -> None:
        """All that are chosen, or none with the reason."""
        ids: list[UUID] = list(queryset.values_list("pk", flat=True)[: MOST + 1])
        if len(ids) > MOST:
            self.message_user(
                request,
                f"More than {MOST} are chosen. Use the command line: manage.py holdfast {verb.action} --help",
                messages.ERROR,
            )
            return
        try:
            changed = _operator(request).act_on(verb, ids).count
        except HoldfastError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, f"{done}: {changed} of {len(ids)}", messages.SUCCESS)


def _operator(request: HttpRequest) -> Operator:
    """The user, for the audit."""
    address = request.META.get("REMOTE_ADDR") or ""
    name = request.user.get_username() or "admin"
    return Operator(app.database, Actor(name, "web", address if is_address(address) else None))


def _may(permission: str) -> Callable[[Any, HttpRequest], bool]:
    def has(self: Any, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"holdfast.{permission}"))  # type: ignore[union-attr]

    return has


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("id", "task", "queue", "status", "attempts", "created_at", "completed_at", "last_error")
    list_filter = ("status",)
    search_fields = ("=id", "=task", "=partition_key")
    ordering = ("-id",)  # by time
    actions = ("retry", "cancel")
    has_retry_permission = _may("retry_job")
    has_cancel_permission = _may("cancel_job")

    @admin.action(description="Retry", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: "QuerySet[Job]") -> None:
        self.act(request, queryset, RETRY, "retried")

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: "QuerySet[Job]") -> None:
        self.act(request, queryset, cancel_verb("in the admin"), "cancelled or asked to stop")


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnly):
    list_display = ("id", "task", "queue", "attempts", "died_at", "last_error")
    search_fields = ("=id", "=task", "=partition_key")
    ordering = ("-died_at",)
    actions = ("redrive",)
    has_redrive_permission = _may("redrive_deadletter")

    @admin.action(description="Put back to work", permissions=["redrive"])
    def redrive(self, request: HttpRequest, queryset: "QuerySet[DeadLetter]") -> None:
        self.act(request, queryset, redrive_verb(None), "put back to work")


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    list_display = ("id", "status", "queues", "concurrency", "release", "started_at", "last_seen_at")
    list_filter = ("status",)
    ordering = ("-last_seen_at",)
