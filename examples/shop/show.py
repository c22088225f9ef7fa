"""What the demo shows: progress while it runs, and the verdict, read by SQL from the two ledgers."""

import sys
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LISTED = 3  # lines of duplicates in the verdict


@dataclass(frozen=True)
class Kill:
    """The named job and its worker, at the moment of the kill."""

    job_id: UUID
    order_id: int
    generation: int
    worker: str
    pid: int
    at: float  # seconds since the epoch, by the database's clock
    held: list[UUID]  # every job that the worker left behind


@dataclass(frozen=True)
class Duplicate:
    order_id: int
    job_id: UUID
    fences: list[str]


@dataclass(frozen=True)
class Counts:
    """What the database says in the end."""

    paid: int
    unpaid: int
    receipts: int
    lost: int  # paid, but no receipt
    phantoms: int  # jobs, mails and receipts of unpaid orders
    inside: int  # receipts beyond the first of an order
    outside: list[Duplicate]  # mails sent more than once
    unfenced: int  # mails sent again without a higher fence
    recovered: int  # jobs left behind that a second owner completed
    generation: int  # of the named job
    worker: str | None  # that completed it
    seconds: float | None  # from the kill to the second start of the named job
    ledger: int = 0  # cents of all paid orders
    projected: int = 0  # cents in order_totals


def read_counts(conn: psycopg.Connection[Any], kill: Kill | None) -> Counts:
    def number(query: str, *values: object) -> int:
        row = conn.execute(query, values or None).fetchone()
        return int(row[0]) if row else 0

    named = kill.job_id if kill else None
    duplicates = conn.execute(
        "SELECT order_id, job_id, array_agg(fence ORDER BY fence) FROM mails"
        " GROUP BY order_id, job_id HAVING count(*) > 1"
        " ORDER BY job_id IS NOT DISTINCT FROM %s DESC, order_id",
        [named],
    )
    second = conn.execute(
        "SELECT j.lease_generation, j.claimed_by,"
        "       (SELECT extract(epoch FROM min(m.at))::float8 FROM mails m"
        "        WHERE m.job_id = j.id AND m.generation > %s)"
        " FROM holdfast.jobs j WHERE j.id = %s AND j.status = 'completed'",
        [kill.generation if kill else 0, named],
    ).fetchone()
    generation, worker, started = second or (0, None, None)
    return Counts(
        paid=number("SELECT count(*) FROM orders WHERE paid_at IS NOT NULL"),
        unpaid=number("SELECT count(*) FROM orders WHERE paid_at IS NULL"),
        receipts=number("SELECT count(*) FROM receipts"),
        lost=number(
            "SELECT count(*) FROM orders WHERE paid_at IS NOT NULL AND id NOT IN (SELECT order_id FROM receipts)"
        ),
        phantoms=number(
            "WITH seen AS (SELECT (payload->>'order_id')::int AS order_id FROM holdfast.jobs"
            " UNION ALL SELECT order_id FROM receipts UNION ALL SELECT order_id FROM mails)"
            " SELECT count(*) FROM seen JOIN orders o ON o.id = seen.order_id WHERE o.paid_at IS NULL"
        ),
        inside=number("SELECT count(*) - count(DISTINCT order_id) FROM receipts"),
        outside=[Duplicate(*row) for row in duplicates],
        unfenced=number("SELECT count(*) - count(DISTINCT (job_id, fence)) FROM mails"),
        recovered=number(
            "SELECT count(*) FROM holdfast.jobs"
            " WHERE id = ANY (%s) AND status = 'completed' AND claimed_by IS DISTINCT FROM %s",
            kill.held if kill else [],
            kill.worker if kill else None,
        ),
        generation=generation,
        worker=worker,
        seconds=started - kill.at if kill and started else None,
        ledger=number("SELECT coalesce(sum(cents), 0) FROM orders WHERE paid_at IS NOT NULL"),
        projected=number("SELECT coalesce(sum(cents), 0) FROM order_totals"),
    )


RECOVERY = 20.0  # seconds from kill -9 to the second start, at default settings


def broken(counts: Counts, kill: Kill | None) -> list[str]:
    """The promises that did not hold, in words; none is what we want."""
    promises = [
        (counts.paid > 0, "no order was paid"),
        (counts.lost == 0, f"{counts.lost} paid orders have no receipt"),
        (counts.inside == 0, f"{counts.inside} receipts were written twice"),
        (counts.phantoms == 0, f"{counts.phantoms} traces of payments that were rolled back"),
        (
            counts.projected == counts.ledger,
            f"order_totals has {counts.projected} cents, the paid orders {counts.ledger}",
        ),
        (counts.unfenced == 0, f"{counts.unfenced} mails were repeated without a higher fence"),
        (kill is not None, "the named job was not caught running, so nobody was killed"),
        (
            kill is None
            or (
                counts.seconds is not None
                and counts.generation > kill.generation
                and counts.worker not in (None, kill.worker)
            ),
            "the named job was not recovered by another worker",
        ),
        (
            counts.seconds is None or counts.seconds <= RECOVERY,
            f"the named job ran again only after {counts.seconds} s, more than {RECOVERY:g}",
        ),
    ]
    return [words for kept, words in promises if not kept]


def verdict_lines(counts: Counts, kill: Kill | None, wrong: list[str]) -> list[str]:
    """At most 12 lines."""
    took = "never" if counts.seconds is None else f"{counts.seconds:.1f} s"
    named = f"order {kill.order_id}" if kill else "nobody was killed"
    if kill and counts.seconds is not None:
        named += f", generation {kill.generation} -> {counts.generation}: from kill -9 to its second start;"
        named += f" {counts.recovered} jobs recovered"
    lines = [
        "Verdict, read by SQL from the two ledgers:",
        f"  orders paid         {counts.paid:>6}  ({counts.unpaid} others are unpaid)",
        f"  receipts sent       {counts.receipts:>6}  ({counts.phantoms} for unpaid orders)",
        f"  lost                {counts.lost:>6}",
        f"  duplicates inside   {counts.inside:>6}  (written in the job's transaction: must be 0)",
        f"  duplicates outside  {len(counts.outside):>6}  (mails cannot be rolled back: same id, higher fence)",
        *_listed(counts.outside),
        f"  cents in the totals {counts.projected:>6}  (a projection of the events; the paid orders have {counts.ledger})",
        f"  time to recover     {took:>6}  ({named})",
    ]
    return [*lines, f"BROKEN: {'; '.join(wrong)}." if wrong else "Every promise held."]


def _listed(duplicates: list[Duplicate]) -> list[str]:
    shown = duplicates if len(duplicates) <= LISTED else duplicates[: LISTED - 1]
    lines = [f"    {d.job_id}  fence {_fences(d.fences)}" for d in shown]
    left = len(duplicates) - len(shown)
    return [*lines, f"    and {left} more"] if left else lines


def _fences(fences: list[str]) -> str:
    """The first in full, of the others only what differs: the generation."""
    first, *rest = fences
    stem, _, _ = first.rpartition("-")
    return " -> ".join([first, *(f"...{f.removeprefix(stem)}" if f.startswith(stem) else f for f in rest)])


@dataclass(frozen=True)
class Progress:
    paid: int
    receipts: int
    total: int
    workers: list[tuple[str, str, int]]  # name, state, jobs it holds


class Screen:
    """A live picture on a terminal; anywhere else plain lines, about one a second."""

    def __init__(self) -> None:
        self._console = Console(force_terminal=sys.stdout.isatty(), soft_wrap=True)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._next_line = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """Something happened."""
        self.write(f"{self.seconds:5.1f} s  {text}", style)

    def write(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style))

    def show(self, now: Progress) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=8, transient=True)
                self._live.start()
            self._live.update(self._picture(now))
        elif self.seconds >= self._next_line:
            self._next_line = self.seconds + 1.0
            held = ", ".join(
                f"{name} {jobs}" if state == "alive" else f"{name} {jobs} ({state})"
                for name, state, jobs in now.workers
            )
            self.say(f"paid {now.paid}, receipts {now.receipts} of {now.total}; jobs held: {held}")

    def _picture(self, now: Progress) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, done in (("paid", now.paid), ("receipts", now.receipts)):
            table.add_row(name, ProgressBar(now.total, done, width=40), f"{done} of {now.total}")
        for name, state, jobs in now.workers:
            table.add_row(name, "#" * jobs or "-", state, style="red" if state == "killed" else None)
        return table

    def close(self) -> None:
        """Take the live picture away; what was said stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None
