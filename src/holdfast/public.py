"""The names that `holdfast` exports. The package loads this module when one of them is first used."""

from .app import Holdfast
from .db.transaction import AsyncTransaction, Transaction
from .egress import Egress
from .errors import (
    BinariesNotFound,
    ConcurrencyConflict,
    ConfigurationError,
    ContractChanged,
    DatabaseError,
    DatabaseUnavailable,
    DuplicateTask,
    EmbeddedError,
    EnqueueError,
    EventsGone,
    ForeignLog,
    HoldfastError,
    HookFailed,
    IdempotencyConflict,
    InvalidArguments,
    InvalidEvent,
    InvalidMessage,
    InvalidOption,
    InvalidPayload,
    JobCancelled,
    JobFailed,
    JobSettled,
    LeaseLost,
    MigrationFailed,
    NoDatabase,
    ReplaceConflict,
    ResultError,
    ResultExpired,
    ResultTimeout,
    SchemaMissing,
    SchemaTooNew,
    SecretUnreadable,
    SubscriptionStopped,
    TaskDefinitionError,
    UnboundTask,
    UnknownEndpoint,
    UnknownQueue,
    UnknownSchedule,
    UnknownSubscription,
    VerificationFailed,
    WrongConnection,
)
from .model.asgi import ASGI, Scope
from .model.backoff import Backoff
from .model.breaker import Breaker
from .model.bucket import sharded_key
from .model.duration import Duration
from .model.outcome import Outcome
from .model.queue import Rate
from .model.signals import Cancel, DeadLetter, HandlerSignal, Retry, Snooze
from .registry import Registry, Webhooks
from .runtime.around import AsyncHook, Hook
from .runtime.batch.items import Batch, Item
from .runtime.job import Job
from .runtime.middleware import Middleware, Next
from .settings import Settings
from .shapes.events.contract import Compatibility, event, upcast
from .shapes.events.contracts.check import Verdict
from .shapes.events.contracts.verbs import Contracts
from .shapes.events.declare import Consumer, ConsumerOptions, OnDecorator
from .shapes.events.event import Event
from .shapes.events.projection import Projection, ProjectionDecorator, ProjectionOptions
from .shapes.events.store import Published
from .shapes.events.verbs import Events, Replay, Subscription
from .shapes.receiver.declare import ReceiveDecorator
from .shapes.receiver.intake import Receipt
from .shapes.receiver.message import ReceivedMessage
from .shapes.receiver.receiver import Receiver
from .shapes.receiver.verify import (
    GitHub,
    Hmac,
    Secrets,
    Shopify,
    Slack,
    StandardWebhooks,
    Stripe,
    Verified,
    Verifier,
)
from .shapes.schedules.backfill import Backfill
from .shapes.schedules.verbs import Schedule, Schedules, Slot
from .shapes.webhooks.endpoints import Endpoints
from .shapes.webhooks.model import Attempt, Delivery, Endpoint, EndpointStatus, Json, Secret
from .shapes.webhooks.portal import PortalLimits
from .shapes.workflows.bodies import StepInfo, current_step
from .shapes.workflows.calls import Child, Steps
from .shapes.workflows.declare import WorkflowDecorator
from .shapes.workflows.faults import (
    ContinueAsNew,
    Evicted,
    NonRetryable,
    StepFailed,
    UnscopedTask,
    WorkflowCancelled,
    WorkflowFailed,
)
from .shapes.workflows.handles import Run
from .shapes.workflows.messages import Message, Received, Signal
from .shapes.workflows.states import State
from .shapes.workflows.steps import Step
from .shapes.workflows.sync import SyncSteps, SyncWorkflow
from .shapes.workflows.timeline import Entry
from .shapes.workflows.workflow import Workflow
from .shapes.workflows.workflow_type import NewRun, WorkflowType, WorkflowUsing
from .store.chains import GroupStatus
from .tasks.batching import BatchDecorator
from .tasks.found import FoundJob
from .tasks.group import GroupHandle
from .tasks.handle import JobHandle
from .tasks.newjob import NewJob
from .tasks.options import EnqueueOptions, TaskOptions
from .tasks.queueing import QueueOptions
from .tasks.registry import Queue
from .tasks.task import Task, TaskDecorator
from .transport import (
    Capabilities,
    Confirmed,
    Health,
    InMessage,
    OutMessage,
    Refused,
    RetryLater,
    Source,
    Transport,
)

__all__ = [
    "ASGI",
    "AsyncHook",
    "AsyncTransaction",
    "Attempt",
    "Backfill",
    "Backoff",
    "Batch",
    "BatchDecorator",
    "BinariesNotFound",
    "Breaker",
    "Cancel",
    "Capabilities",
    "Child",
    "Compatibility",
    "ConcurrencyConflict",
    "ConfigurationError",
    "Confirmed",
    "Consumer",
    "ConsumerOptions",
    "ContinueAsNew",
    "ContractChanged",
    "Contracts",
    "DatabaseError",
    "DatabaseUnavailable",
    "DeadLetter",
    "Delivery",
    "DuplicateTask",
    "Duration",
    "Egress",
    "EmbeddedError",
    "Endpoint",
    "EndpointStatus",
    "Endpoints",
    "EnqueueError",
    "EnqueueOptions",
    "Entry",
    "Event",
    "Events",
    "EventsGone",
    "Evicted",
    "ForeignLog",
    "FoundJob",
    "GitHub",
    "GroupHandle",
    "GroupStatus",
    "HandlerSignal",
    "Health",
    "Hmac",
    "Holdfast",
    "HoldfastError",
    "Hook",
    "HookFailed",
    "IdempotencyConflict",
    "InMessage",
    "InvalidArguments",
    "InvalidEvent",
    "InvalidMessage",
    "InvalidOption",
    "InvalidPayload",
    "Item",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobSettled",
    "Json",
    "LeaseLost",
    "Message",
    "Middleware",
    "MigrationFailed",
    "NewJob",
    "NewRun",
    "Next",
    "NoDatabase",
    "NonRetryable",
    "OnDecorator",
    "OutMessage",
    "Outcome",
    "PortalLimits",
    "Projection",
    "ProjectionDecorator",
    "ProjectionOptions",
    "Published",
    "Queue",
    "QueueOptions",
    "Rate",
    "Receipt",
    "ReceiveDecorator",
    "Received",
    "ReceivedMessage",
    "Receiver",
    "Refused",
    "Registry",
    "ReplaceConflict",
    "Replay",
    "ResultError",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryLater",
    "Run",
    "Schedule",
    "Schedules",
    "SchemaMissing",
    "SchemaTooNew",
    "Scope",
    "Secret",
    "SecretUnreadable",
    "Secrets",
    "Settings",
    "Shopify",
    "Signal",
    "Slack",
    "Slot",
    "Snooze",
    "Source",
    "StandardWebhooks",
    "State",
    "Step",
    "StepFailed",
    "StepInfo",
    "Steps",
    "Stripe",
    "Subscription",
    "SubscriptionStopped",
    "SyncSteps",
    "SyncWorkflow",
    "Task",
    "TaskDecorator",
    "TaskDefinitionError",
    "TaskOptions",
    "Transaction",
    "Transport",
    "UnboundTask",
    "UnknownEndpoint",
    "UnknownQueue",
    "UnknownSchedule",
    "UnknownSubscription",
    "UnscopedTask",
    "Verdict",
    "VerificationFailed",
    "Verified",
    "Verifier",
    "Webhooks",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowDecorator",
    "WorkflowFailed",
    "WorkflowType",
    "WorkflowUsing",
    "WrongConnection",
    "current_step",
    "event",
    "sharded_key",
    "upcast",
]
