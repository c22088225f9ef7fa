"""Workers: their state, last heartbeat and load; and asking them to leave."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import telemetry
from ..errors import ConfigurationError
from ..model.actor import Actor
from ..store import queue_load
from ..store import workers as store
from ..store.audit import audit
from ..store.queue_load import WorkerLine
from ..store.statement import Flow
from ..store.workers import FoundWorker
from .procedure import Procedure, actor, run, wait
from .refusal import Refused
from .search import check_texts

MOST_WORKERS = 1000
_LOOK = 10_000
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Drained:
    asked: list[str] = field(default_factory=list)  # were alive
    draining: list[str] = field(default_factory=list)  # were draining already
    gone: list[str] = field(default_factory=list)  # had left before


def list_workers(*, with_gone: bool = False, running: bool = True) -> Procedure[list[WorkerLine]]:
    """Live workers, the last heartbeat first; those that are gone only on request. Without `running` none of their jobs is
    counted."""
    return (yield from run(lambda: queue_load.list_workers(with_gone, MOST_WORKERS, running)))


def masked_names() -> Procedure[frozenset[str]]:
    """The names that the code of workers masks, for tools that show jobs without the code."""
    return (yield from run(store.masked_names))


def drain_workers(
    *,
    ids: Sequence[str] = (),
    host: str | None = None,
    everyone: bool = False,
    dry_run: bool = False,
) -> Procedure[Drained]:
    """Ask workers to drain and leave: these (the beginning of an id or of its last part is enough), those of a host, or all.

    Each stops claiming at once, and learns with its next heartbeat to finish or hand back its jobs. A dry run
    returns the workers it would ask.
    """
    if sum((bool(ids), host is not None, everyone)) != 1:
        raise Refused("no_workers", "say which workers: their ids, those of a host, or all")
    if not all(ids):
        raise Refused("no_worker_id", "an id must not be empty")
    check_texts({"host": host, **{f"id {n}": text for n, text in enumerate(ids, 1)}})
    wanted = list(dict.fromkeys(ids))
    selection = {"ids": wanted or None, "host": host, "all": everyone or None}
    who = yield from actor()
    if dry_run:
        return (yield from run(lambda: _meant(wanted, host, everyone)))
    done = yield from run(lambda: _drain(wanted, host, everyone, selection, who))
    telemetry.emit("workers.drained", count=len(done.asked))
    return done


def _drain(
    ids: Sequence[str], host: str | None, everyone: bool, selection: Mapping[str, object], who: Actor
) -> Flow[Drained]:
    meant = yield from _meant(ids, host, everyone)
    asked = yield from store.drain_workers(meant.asked)
    if asked:
        yield from audit(who, "workers drain", selection, len(asked))
    moved_on = [worker for worker in meant.asked if worker not in asked]
    return Drained(sorted(asked), sorted([*meant.draining, *moved_on]), meant.gone)


def _meant(ids: Sequence[str], host: str | None, everyone: bool) -> Flow[Drained]:
    """The workers to ask, and those that need not be."""
    found = yield from store.find_workers(ids, host, everyone, _LOOK)
    meant = [_only(wanted, found) for wanted in ids] if ids else found
    if host is not None and not meant:
        raise Refused("no_host", f"no worker runs on host {host!r}", host=host)
    return Drained(*(sorted({w.id for w in meant if w.status == s}) for s in ("alive", "draining", "gone")))


def _only(wanted: str, found: Sequence[FoundWorker]) -> FoundWorker:
    """The one worker that is meant: of this id, or the only one that begins with it. Those that are gone count last."""
    fits = [w for w in found if w.prefix == wanted]
    exact = [w for w in fits if w.id == wanted]
    living = [w for w in fits if w.status != "gone"]
    meant = exact or (living if living else fits)
    if not meant:
        raise Refused("no_worker", f"there is no worker {wanted!r}", id=wanted)
    if len(meant) > 1:
        some = ", ".join(w.id for w in meant[:3]) + (", ..." if len(meant) > 3 else "")
        raise ConfigurationError(f"{len(meant)} workers begin with {wanted!r} ({some}). Write more of the id")
    return meant[0]


def wait_until_gone(ids: Sequence[str], seconds: float) -> Procedure[list[str]]:
    """Wait for these workers to leave; returns those that have not."""
    deadline = time.monotonic() + seconds
    while left := (yield from run(lambda: store.workers_left(ids))):
        if time.monotonic() >= deadline:
            return left
        yield from wait(_PAUSE)
    return []
