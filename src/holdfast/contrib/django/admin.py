"""Jobs, dead letters and workers in Django's admin: lists to read, and the verbs of an operator for permitted users."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html

from ...errors import HoldfastError
from ...model import state
from ...model.actor import Actor, is_address
from ...model.masking import masked_text
from ...operate.dead import redrive_verb
from ...operate.job_acts import RETRY, Verb, cancel_verb
from ...operate.operator import Operator
from .models import DeadLetter, Job, Worker
from .project import app

MOST_SELECTED = 1000  # that are acted on in one request
_COUNTED = 10_000  # rows: a list that is longer says so, and is not counted to its end
_MASKED = ("last_error", "hold_reason")  # they may quote arguments
_STATES = (
    state.PENDING,
    state.SCHEDULED,
    state.PROCESSING,
    state.HELD,
    state.BLOCKED,
    state.QUARANTINED,
    state.COMPLETED,
    state.CANCELLED,
    state.DEAD_LETTER,
)


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    @cached_property
    def count(self) -> int:
        return int(self.object_list[:_COUNTED].count())  # type: ignore[attr-defined]


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Nothing is added, changed or deleted by a form."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # a count per state would read every job
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Any]":
        return super().get_queryset(request).using(app.options.database)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Masked fields cannot be searched: ?last_error__startswith= would reveal them letter by letter."""
        return lookup.partition("__")[0] not in _MASKED and super().lookup_allowed(lookup, value, request)

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Any]", search_term: str
    ) -> "tuple[QuerySet[Any], bool]":
        """By the whole value. Django's own compares in upper case, which reads every job even to find an id."""
        if not (term := search_term.strip()):
            return queryset, False
        with contextlib.suppress(ValueError):
            return queryset.filter(pk=UUID(term)), False
        wanted = Q()
        for name in self.search_fields:
            wanted |= Q((name, term))
        return queryset.filter(wanted), False

    @admin.display(description="id", ordering="id")
    def key(self, row: Any) -> str:
        return format_html('<span class="nowrap">{}</span>', row.pk)

    @admin.display(description="last error")
    def error(self, row: Any) -> str:
        return _masked(row.task, row.last_error)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def act(self, request: HttpRequest, queryset: "QuerySet[Any]", verb: Verb, done: str) -> None:
        """All that are chosen, or none with the reason."""
        ids: list[UUID] = list(queryset.values_list("pk", flat=True)[: MOST_SELECTED + 1])
        if len(ids) > MOST_SELECTED:
            self.message_user(
                request,
                f"More than {MOST_SELECTED} are chosen. Use the command line: manage.py holdfast {verb.action} --help",
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


def _masked(task: str, text: str | None) -> str:
    """As the dashboard shows it: without secrets, and without what the task masks."""
    definition = app.tasks.definition(task)
    names: Sequence[str] = () if definition is None else definition.settings.masked
    return "" if text is None else masked_text(text, names=names)


class StateFilter(admin.SimpleListFilter):
    """By state. Django's own would ask every row for the states there are."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(word, word) for word in _STATES]

    def value(self) -> str | None:
        given = super().value()
        return None if given is None else state.state_named(given)

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":
        return queryset if self.value() is None else queryset.filter(status=self.value())


def _may(permission: str) -> Callable[[Any, HttpRequest], bool]:
    def has(self: Any, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"holdfast.{permission}"))  # type: ignore[union-attr]

    return has


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("key", "task", "queue", "status", "attempts", "created_at", "completed_at", "error")
    list_filter = (StateFilter,)
    sortable_by = ("key",)  # by another column it would sort every job
    search_fields = ("task", "partition_key")  # and id
    fields = (
        "id", "task", "queue", "status", "priority", "attempts", "max_attempts", "partition_key", "created_at",
        "available_at", "claimed_by", "completed_at", "error", "reason",
    )  # fmt: skip
    readonly_fields = ("error", "reason")
    ordering = ("-id",)  # by time
    actions = ("retry", "cancel")
    has_retry_permission = _may("retry_job")
    has_cancel_permission = _may("cancel_job")

    @admin.display(description="held because")
    def reason(self, row: Job) -> str:
        return _masked(row.task, row.hold_reason)

    @admin.action(description="Retry", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: "QuerySet[Job]") -> None:
        self.act(request, queryset, RETRY, "retried")

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: "QuerySet[Job]") -> None:
        self.act(request, queryset, cancel_verb("in the admin"), "cancelled or asked to stop")


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnly):
    list_display = ("key", "task", "queue", "attempts", "died_at", "error")
    search_fields = ("task", "partition_key")  # and id
    fields = (
        "id",
        "task",
        "queue",
        "attempts",
        "partition_key",
        "created_at",
        "died_at",
        "claimed_by",
        "error",
    )
    readonly_fields = ("error",)
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
