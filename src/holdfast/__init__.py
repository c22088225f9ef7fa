"""Durable work on PostgreSQL: jobs that survive crashes, in the database you already have."""

from .app import Holdfast
from .db.transaction import AsyncTransaction, Transaction
from .errors import (
    BinariesNotFound,
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailable,
    DuplicateTask,
    EmbeddedError,
    EnqueueError,
    HoldfastError,
    IdempotencyConflict,
    InvalidArguments,
    InvalidOption,
    InvalidPayload,
    JobCancelled,
    JobFailed,
    JobSettled,
    LeaseLost,
    MigrationFailed,
    NoDatabase,
    ResultError,
    ResultExpired,
    ResultTimeout,
    SchemaMissing,
    SchemaTooNew,
    TaskDefinitionError,
    UnboundTask,
    UnknownQueue,
    WrongConnection,
)
from .model.backoff import Backoff
from .model.breaker import Breaker
from .model.duration import Duration
from .model.outcome import Outcome
from .model.signals import Cancel, DeadLetter, Retry, Signal, Snooze
from .runtime.batch import Batch, Item
from .runtime.execute import Middleware, Next
from .runtime.job import Job
from .settings import Settings
from .tasks.batching import BatchDecorator
from .tasks.handle import JobHandle
from .tasks.options import EnqueueOptions, QueueOptions, TaskOptions
from .tasks.registry import Queue, Registry
from .tasks.task import NewJob, Task, TaskDecorator

__all__ = [
    "AsyncTransaction",
    "Backoff",
    "Batch",
    "BatchDecorator",
    "BinariesNotFound",
    "Breaker",
    "Cancel",
    "ConfigurationError",
    "DatabaseError",
    "DatabaseUnavailable",
    "DeadLetter",
    "DuplicateTask",
    "Duration",
    "EmbeddedError",
    "EnqueueError",
    "EnqueueOptions",
    "Holdfast",
    "HoldfastError",
    "IdempotencyConflict",
    "InvalidArguments",
    "InvalidOption",
    "InvalidPayload",
    "Item",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobSettled",
    "LeaseLost",
    "Middleware",
    "MigrationFailed",
    "NewJob",
    "Next",
    "NoDatabase",
    "Outcome",
    "Queue",
    "QueueOptions",
    "Registry",
    "ResultError",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "SchemaMissing",
    "SchemaTooNew",
    "Settings",
    "Signal",
    "Snooze",
    "Task",
    "TaskDecorator",
    "TaskDefinitionError",
    "TaskOptions",
    "Transaction",
    "UnboundTask",
    "UnknownQueue",
    "WrongConnection",
]
