"""Problems of the sources of messages."""

from collections.abc import Iterator, Sequence

from ...operate.advice import advise, start_worker
from ...operate.doctor.finding import Check, Finding, Patient
from ...operate.wording import cut, listed, several, span
from .store import NEWEST, Health, source_health

RETRIED_FOR = 4 * 86400.0  # seconds: the usual senders of webhooks try again for up to 76 hours


def check_sources(p: Patient) -> Iterator[Finding]:
    found = p.probe.look(source_health())
    brokers = [s for s in found if s.broker]
    unseen = [s for s in brokers if p.limits.is_late(s.unseen)]
    if unseen:
        what = f"{several(len(unseen), 'broker')} that no live worker reads: its messages wait there"
        details = [f"{s.name} (task {s.task}), last read by a worker {span(s.unread)} ago" for s in unseen]
        yield Finding("unread_source", "error", what, [start_worker()], listed(details))
    broken = [s for s in brokers if s not in unseen and p.limits.is_late(s.unread)]
    if broken:
        what = f"{several(len(broken), 'broker')} that workers cannot read"
        details = [f"{s.name}, for {span(s.unread)}: {cut(s.problem or 'it does not reply')}" for s in broken]
        yield Finding("broken_source", "error", what, [advise("list_workers")], listed(details))
    yield from _parked([s for s in found if s.parked])
    yield from _forgetful([s for s in found if not s.broker and s.keep < RETRIED_FOR])


def _parked(found: Sequence[Health]) -> Iterator[Finding]:
    if found:
        messages = sum(s.parked for s in found)
        what = f"{several(messages, 'received message')} set aside: of the newest {NEWEST} dead letters, they did not fit"
        details = [f"{s.name} (task {s.task}): {several(s.parked, 'message')}" for s in found]
        fix = [advise("list_dead_of", task=s.task) for s in found]
        yield Finding("parked_messages", "warning", what, fix, listed(details))


def _forgetful(found: Sequence[Health]) -> Iterator[Finding]:
    if found:
        what = (
            f"{several(len(found), 'source')} that forgets ids before senders stop to retry: "
            f"a message may become a second job. Raise keep_ids"
        )
        details = [f"{s.name} keeps ids for {span(s.keep)}; senders retry for up to 76 hours" for s in found]
        yield Finding(
            "forgetful_source",
            "warning",
            what,
            [advise("keep_ids", name=s.name) for s in found],
            listed(details),
        )


CHECKS = (
    Check(
        "sources",
        "messages are read, fit their types, and are known for as long as they may be sent again",
        ("unread_source", "broken_source", "parked_messages", "forgetful_source"),
        check_sources,
    ),
)
