"""A part of a page that cannot be read now: the page says so, and the rest of it is there."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.cli.refusals import words
from holdfast.db.faults import BadRow, Contended, LockTimeout
from holdfast.errors import DatabaseError
from holdfast.model.masking import masked_text
from holdfast.operate.procedure import Procedure

T = TypeVar("T")
_log = logging.getLogger("holdfast.web")
PARTIAL = (LockTimeout, Contended, BadRow)  # of one statement; what else fails is about the whole database


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that is not there, and why."""

    name: str  # begins a sentence
    why: str
    mark: str = ""  # under which the log has it

    @property
    def sentence(self) -> str:
        return f"{self.name} could not be read: {self.why}."


async def in_time(name: str, look: Callable[[], Awaitable[T]], patience: float) -> T | Missing:
    """What others wait for too is read to its end."""
    asked = asyncio.ensure_future(look())
    try:
        await asyncio.wait({asked}, timeout=patience)
        if asked.done():
            return asked.result()
    except PARTIAL as error:
        return _missing(name, error)
    finally:
        asked.cancel()
    return Missing(name, f"it took longer than {patience:g} s")


def part(name: str, look: Procedure[T]) -> Procedure[T | Missing]:
    try:
        return (yield from look)
    except PARTIAL as error:
        return _missing(name, error)


def _missing(name: str, error: DatabaseError) -> Missing:
    mark = secrets.token_hex(4)
    _log.error("a part of a page failed (%s)", mark, exc_info=error)
    if isinstance(error, LockTimeout):
        return Missing(name, "it took too long, or somebody holds a lock on it", mark)
    return Missing(name, masked_text(words(error)), mark)
