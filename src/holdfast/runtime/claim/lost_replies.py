"""Claims whose reply was lost. They may have committed: their jobs are given back, because they never started."""

import contextlib
import functools
from collections.abc import Iterator
from uuid import UUID, uuid4

from ...db.faults import BadRow, LockNotAvailable
from ...db.session import Session
from ...store.chains import GroupBusy
from ...store.sweep import disown, return_disowned


class LostReplies:
    def __init__(self, session: Session, max_crashes: int) -> None:
        self._session = session
        self._max_crashes = max_crashes
        self._open: list[tuple[str, UUID]] = []
        self._in_doubt: list[tuple[str, UUID]] = []

    def token(self, worker: str) -> UUID:
        """About a claim that this worker is about to make."""
        token = uuid4()
        self._open.append((worker, token))
        return token

    @contextlib.contextmanager
    def accounted(self) -> Iterator[None]:
        """A claim that ended with an error may have committed: its jobs are given back before the next claim."""
        try:
            yield
        except BaseException:
            self._in_doubt += self._open
            raise
        finally:
            self._open = []

    async def give_back(self) -> None:
        while self._in_doubt:
            worker, token = self._in_doubt[-1]
            await self._session.run(disown(worker, [token]))
            with contextlib.suppress(BadRow, GroupBusy, LockNotAvailable):  # then a sweep does it
                await self._session.flow(functools.partial(return_disowned, token, self._max_crashes))
            self._in_doubt.pop()
