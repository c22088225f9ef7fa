"""The output of a child process: split into lines, bounded, and its end kept for the trace of a failed attempt."""

from dataclasses import dataclass, field

from ...model.text import storable

LINES = 1000  # lines of one job that are passed on; the rest is read and dropped
_LINE = 2000
_TAIL = 8192


@dataclass(slots=True)
class Output:
    lines: int = 0
    dropped: int = 0  # bytes that were not passed on
    _open: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now, as many as are still allowed."""
        self._tail += data[-_TAIL:]
        del self._tail[:-_TAIL]
        if self.lines >= LINES:
            self.dropped += len(data)
            return []
        *complete, rest = (bytes(self._open) + data).split(b"\n")
        self._open = bytearray(rest)
        if len(rest) > _LINE:  # a line without an end must not grow for ever
            complete.append(rest)
            self._open.clear()
        return self._allowed(complete)

    def end(self) -> list[str]:
        """The line that has no end yet."""
        rest, self._open = bytes(self._open), bytearray()
        return self._allowed([rest]) if rest else []

    def tail(self) -> str:
        return storable(self._tail.decode("utf-8", "replace").strip("\n"), 2 * _TAIL)

    def _allowed(self, complete: list[bytes]) -> list[str]:
        passed = complete[: LINES - self.lines]
        self.dropped += sum(len(line) + 1 for line in complete[len(passed) :])
        self.lines += len(passed)
        return [_cut(line) for line in passed]


def _cut(line: bytes) -> str:
    text = line[: _LINE * 4].decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= _LINE else text[:_LINE] + "..."
