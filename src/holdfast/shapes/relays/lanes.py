"""Events that a relay has read and not yet passed: which may be sent now, and how far the cursor may move.

Messages of a key are a lane. A lane sends one message at a time, and the next when that is confirmed: otherwise a broker
that drops repeated ids would keep n + 1 before n for ever, when n has to be sent again. If a batch is stored as a prefix,
a lane sends all it has. Nothing here waits, sends or reads.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from ...follow import LogRow, Note
from ...transport import OutMessage

Name = tuple[str, str | int]  # of a lane: ("key", ...), ("to", destination) or ("at", position)


@dataclass(slots=True, eq=False)
class Item:
    """One event that was read. `message` is None once it is done."""

    position: int
    seq: int
    row: LogRow | None = None  # None: the end of a page
    message: OutMessage | None = None
    lane: "Lane | None" = None
    note: Note | None = None
    done: bool = False
    confirmed: bool = False


@dataclass(slots=True, eq=False)
class Lane:
    name: Name
    items: deque[Item] = field(
        default_factory=deque
    )  # in the order of the log; the first `sent` are in flight
    sent: int = 0
    attempts: int = 0  # failures in a row
    lost: int = 0  # the same, of the destination
    failing_since: float | None = None  # by the clock of the breaker
    retry_at: float = 0.0
    error: str = ""


class Lanes:
    """`prefix`: a lane may send more than one message at a time."""

    def __init__(self, position: int, seq: int, *, prefix: bool) -> None:
        self._prefix = prefix
        self._all: deque[Item] = deque()
        self._lanes: dict[Name, Lane] = {}
        self._ready: dict[Name, Lane] = {}  # may send; in the order in which they became so
        self._later: list[tuple[float, int, Lane]] = []
        self._entered = 0
        self.passed = (position, seq)  # all events up to here are done
        self.unsent = 0  # items with a message, sent or not
        self.confirmed = 0  # items that were sent, behind one that holds up the position
        self.bytes = 0
        self.in_flight = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_empty(self) -> bool:
        """Nothing is to be sent."""
        return self.unsent == 0

    def add(self, item: Item, name: Name) -> None:
        """An event to send, after all that were added before it."""
        assert item.message is not None
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
        item.lane = lane
        lane.items.append(item)
        self._all.append(item)
        self.unsent += 1
        self.bytes += len(item.message.body)
        if lane.retry_at == 0.0 and (self._prefix or lane.sent == 0):
            self._ready[name] = lane

    def add_done(self, item: Item) -> None:
        """An event that is not sent, or the end of a page."""
        item.row, item.done = None, True  # many may be recorded while one holds up the cursor
        self._all.append(item)

    def take(self, most: int, now: float, below: int | None = None, *, untried: bool = False) -> list[Item]:
        """The messages that may be sent now, in the order of the log within each lane; none at `below` or after it.
        `untried`: only of lanes for which the destination was not unreachable."""
        while self._later and self._later[0][0] <= now:
            lane = heapq.heappop(self._later)[2]
            if lane.retry_at and lane.retry_at <= now and lane.items:
                lane.retry_at = 0.0
                self._ready[lane.name] = lane
        taken: list[Item] = []
        ready: Iterator[tuple[Name, Lane]] = iter(self._ready.items())
        if untried:
            ready = (one for one in ready if one[1].lost == 0)
        ready = islice(ready, None if below is not None else most)
        for name, lane in list(ready):
            room = most - len(taken) if self._prefix else 1
            found = list(islice(lane.items, lane.sent, lane.sent + room))
            if below is not None:  # lanes that may not send stay ready, in front of others
                found = [item for item in found if item.position < below]
                if not found:
                    continue
            del self._ready[name]
            lane.sent += len(found)
            taken += found
            if self._prefix and lane.sent < len(lane.items):
                self._ready[name] = lane
            if len(taken) >= most:
                break
        self.in_flight += len(taken)
        return taken

    def next_retry(self) -> float | None:
        return self._later[0][0] if self._later else None

    def has_ready(self) -> bool:
        return bool(self._ready)

    def has_untried(self, below: int | None = None) -> bool:
        """A message that may be sent, of a lane for which the destination was not unreachable."""
        fresh = (lane.items[lane.sent] for lane in self._ready.values() if lane.lost == 0)
        return any(below is None or item.position < below for item in fresh)

    def finish(self, item: Item, note: Note | None = None) -> None:
        """It was sent, and is confirmed or recorded. It is the first of its lane."""
        lane = item.lane
        assert lane is not None
        assert item.message is not None
        assert lane.items[0] is item
        lane.items.popleft()
        lane.sent -= 1
        self.in_flight -= 1
        lane.attempts, lane.lost, lane.failing_since, lane.retry_at = 0, 0, None, 0.0
        self._settle(item, note)
        if not lane.items:
            del self._lanes[lane.name]
        elif lane.sent == 0:
            self._ready[lane.name] = lane

    def _settle(self, item: Item, note: Note | None) -> None:
        assert item.message is not None
        self.unsent -= 1
        self.bytes -= len(item.message.body)
        item.row, item.message, item.lane, item.note, item.done = None, None, None, note, True
        item.confirmed = note is None
        self.confirmed += item.confirmed

    def again(self, items: list[Item]) -> None:
        """They were sent and are not known to be stored: their lanes start with them again, when `wait` lets them."""
        for item in items:
            lane = item.lane
            assert lane is not None
            lane.sent -= 1
            self.in_flight -= 1
            if lane.sent == 0 and lane.retry_at == 0.0:
                self._ready[lane.name] = lane

    def wait(self, lane: Lane, until: float, clock: float, error: str) -> None:
        """A lane failed: nothing of it is sent before that. `clock`: now, for how long it has failed."""
        lane.attempts += 1
        lane.failing_since = clock if lane.failing_since is None else lane.failing_since
        lane.retry_at, lane.error = until, error
        self._ready.pop(lane.name, None)
        self._entered += 1
        heapq.heappush(self._later, (until, self._entered, lane))

    def first(self) -> Lane | None:
        """The lane that holds up the position."""
        return self._all[0].lane if self._all else None

    def failing(self) -> Iterator[Lane]:
        """Lanes that wait because they failed."""
        waiting = {id(lane): lane for _, _, lane in self._later if lane.retry_at and lane.items}
        return iter(waiting.values())

    def waits_behind(self, key: str) -> list[Item]:
        """Items of a key that were read and are not in flight."""
        lane = self._lanes.get(("key", key))
        if lane is not None:
            return list(islice(lane.items, lane.sent, None))
        return [
            item
            for lane in self._lanes.values()
            if lane.name[0] == "to"  # where a destination is a lane, it has many keys
            for item in islice(lane.items, lane.sent, None)
            if item.message is not None and item.message.key == key
        ]

    def drop(self, items: list[Item], notes: list[Note]) -> None:
        """Unsent items of a lane are recorded instead of sent."""
        for item, note in zip(items, notes, strict=True):
            lane = item.lane
            assert lane is not None
            lane.items.remove(item)
            self._settle(item, note)
            if lane.sent == len(lane.items):  # what is left of it is in flight
                self._ready.pop(lane.name, None)
            if not lane.items:
                self._lanes.pop(lane.name, None)

    def ahead(self) -> int:
        """Positions from the first unfinished one to the last that was read."""
        return self._all[-1].position - self.passed[0] if self._all else 0

    def is_done_before(self, position: int) -> bool:
        """Nothing before it waits or is in flight. Events of others may be between."""
        return not self._all or self._all[0].position >= position

    def pass_done(self) -> list[Note]:
        """Move behind the finished ones; returns those that were recorded."""
        notes = []
        while self._all and self._all[0].done:
            item = self._all.popleft()
            self.passed = (item.position, item.seq)
            self.confirmed -= item.confirmed
            if item.note is not None:
                notes.append(item.note)
        return notes
