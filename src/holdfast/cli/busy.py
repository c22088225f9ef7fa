"""A sign of life: what takes more than two seconds has a bar on stderr, at a terminal alone. It goes when that is done."""

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

from holdfast.cli.render import age

PATIENCE = 2.0  # seconds without a bar
_EVERY = 0.2
_LONG = 20  # characters of a bar
_BLOCK = 4  # of one that moves, where nobody knows how much there is to do


class Busy:
    """The bar of one command."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._done: int | None = None
        self._total: int | None = None
        self._is_drawn = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._draw, daemon=True, name="holdfast-bar").start()

    def at(self, done: int, what: str | None = None, total: int | None = None) -> None:
        """How much is done, of what, and of how many if that is known."""
        self._done, self._what, self._total = done, what or self._what, total

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Prints this meanwhile, and continues after it."""
        before = self._what, self._done, self._total
        self._what, self._done, self._total = what, None, None
        try:
            yield
        finally:
            self._what, self._done, self._total = before

    def end(self) -> None:
        self._over.set()
        self.erase()

    def erase(self) -> None:
        """Before something else is written; the next picture comes by itself."""
        with self._lock:
            if self._is_drawn:
                sys.stderr.write(f"\r{' ' * _width()}\r")
                sys.stderr.flush()
                self._is_drawn = False

    def _draw(self) -> None:
        pause = PATIENCE
        while not self._over.wait(pause):
            pause = _EVERY
            text = picture(self._what, self._done, self._total, time.monotonic() - self._began)
            with self._lock:
                if self._over.is_set():
                    return
                self._is_drawn = True
                width = _width()
                sys.stderr.write(f"\r{text[:width]:<{width}}")
                sys.stderr.flush()


def picture(what: str, done: int | None, total: int | None, seconds: float) -> str:
    """One line: `[#####               ] 25% of 1,200 jobs, 3 s`."""
    if done is not None and total:
        share = min(1.0, done / total)
        return f"[{'#' * int(share * _LONG):<{_LONG}}] {share:.0%} of {total:,} {what}, {age(seconds)}"
    place = int(seconds / _EVERY) % (_LONG - _BLOCK + 1)
    drawn = f"[{' ' * place + '#' * _BLOCK:<{_LONG}}]"
    return f"{drawn} {what if done is None else f'{done:,} {what}'}, {age(seconds)}"


_current: ContextVar[Busy | None] = ContextVar("holdfast_busy", default=None)


_for_programs: ContextVar[bool] = ContextVar("holdfast_for_programs", default=False)


@contextlib.contextmanager
def busy(what: str = "working", *, as_json: bool = False) -> Iterator[None]:
    """Around what may take long. Nothing is drawn for programs, nor where stderr is no terminal."""
    programs = _for_programs.set(
        as_json or _for_programs.get()
    )  # whatever is reached inside says nothing either
    try:
        if _for_programs.get() or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield
            return
        around = _current.get()
        with _bar(what) if around is None or around.is_over else around.part(what):
            yield
    finally:
        _for_programs.reset(programs)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[None]:
    bar = Busy(what)
    token = _current.set(bar)
    try:
        yield
    finally:
        _current.reset(token)
        bar.end()


def at(done: int, what: str | None = None, total: int | None = None) -> None:
    """How far it is, for the bar that is there, if one is."""
    if (bar := _current.get()) is not None:
        bar.at(done, what, total)


def erase() -> None:
    """Make room for a line of output."""
    if (bar := _current.get()) is not None:
        bar.erase()


def end() -> None:
    """No bar from here on: somebody is asked, or something else is drawn."""
    if (bar := _current.get()) is not None:
        bar.end()


def _width() -> int:
    return min(78, shutil.get_terminal_size().columns - 1)
