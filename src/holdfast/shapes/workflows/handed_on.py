"""What a branch took that `wf.first` did not choose: another call of the run gets it.

A branch that lost may have taken a signal at the moment at which another won. If it was `wf.signal()` itself, no code has
seen that signal. Its record stays, and the next call that asks for the signal is given it: the record of that call
names the other one, so that a replay gives it once. The end of a child may be asked for by several calls, one of which
takes the message.
"""

import json
from collections.abc import Sequence

from .journal import Record, Stored, Wait
from .replay import Replay, origins


class HandedOn:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._lost: dict[str, list[str]] = {}  # signal -> keys that branches have for it which lost
        self._asked: dict[str, int] = {}  # the message of a child's end -> how many calls ask for it

    def lose(self, calls: Sequence[tuple[str, str] | None], winner: int) -> None:
        """The calls of a `first`: of each that is `wf.signal()` itself the signal, and the key that its record has."""
        for index, call in enumerate(calls):
            if call is not None and index != winner:
                self._lost.setdefault(call[0], []).append(call[1])

    def ask(self, message: str) -> None:
        """Another call asks for the end of a child."""
        self._asked[message] = self._asked.get(message, 0) + 1

    def may_have(self, wait: Wait) -> bool:
        """Whether what it waits for may be there, although no message is unread."""
        if wait.kind == "child":
            return self._asked.get(wait.name, 0) > 1 or self._replay.lost_child
        return wait.kind == "signal" and bool(self._unseen(wait.name))

    def next(self, wait: Wait) -> Record | None:
        """The record of the wait, with the oldest signal that nobody has seen."""
        if wait.kind != "signal" or not (unseen := self._unseen(wait.name)):
            return None
        (key, found) = unseen[0]
        return self._record(wait, json.loads(found.record.result or "{}"), [key])

    def every(self, wait: Wait) -> Record | None:
        """The same of `wf.received()`, with all of them."""
        if not (unseen := self._unseen(wait.name)):
            return None
        values = [json.loads(found.record.result or "{}").get("value") for _, found in unseen]
        return self._record(wait, {"values": values}, [key for key, _ in unseen])

    def left(self) -> list[str]:
        """The keys of the records that took a signal which nobody has seen."""
        lost = [found for name in self._lost for _, found in self._unseen(name)]
        return [key for found in lost for key in self._sources(found.record)]

    def _sources(self, record: Record) -> list[str]:
        """A signal may have been handed on to a branch that lost too."""
        rows = [row.record for key in origins(record) if (row := self._replay.stored(key)) is not None]
        return [key for row in rows for key in self._sources(row)] or [record.key]

    def _unseen(self, signal: str) -> list[tuple[str, Stored]]:
        found = []
        for key in self._lost.get(signal, ()):
            row = self._replay.stored(key)
            if row is not None and row.record.outcome == "done" and key not in self._replay.handed_on:
                found.append((key, row))
        return found

    def _record(self, wait: Wait, result: dict[str, object], keys: list[str]) -> Record:
        self._replay.handed_on.update(keys)
        text = json.dumps(result | {"from": keys})
        return Record(wait.key, "signal", "done", wait.ordinal, text, began=wait.began)
