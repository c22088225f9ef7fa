"""Names become addresses here, once per connection."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

PLACES = 32  # look-ups at once of names that are quick, or not known yet; as many of those that were slow
THREADS = 256  # of them all, with those that nobody awaits any more
QUICK = 1.0  # seconds after which a look-up gives up its place, and its name counts as slow
REMEMBERED = 10_000  # slow names


class SystemResolver:
    """The system's resolver, in separate threads, for one event loop.

    The owner of a name may make its look-up slow. So one name has one look-up at a time, which all its callers
    share; and a name that was slow waits for separate places, so that it delays other slow names only.

    It asks for the full name, with a last dot: the search list of the machine is not tried, the hosts file is not read."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-names")
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}
        self._slow: OrderedDict[str, None] = OrderedDict()
        self._places = asyncio.Semaphore(PLACES)
        self._slow_places = asyncio.Semaphore(PLACES)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        task = self._under_way.get(host)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._under_way[host] = loop.create_task(self._find(host), name="holdfast names")
            task.add_done_callback(lambda done: self._ended(host, done))
        return await asyncio.shield(task)  # the others that wait for it are not cancelled

    def _ended(self, host: str, task: "asyncio.Task[list[str]]") -> None:
        del self._under_way[host]
        if not task.cancelled():
            task.exception()  # perhaps nobody awaits it any more

    async def _find(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        if host in self._slow:
            async with self._slow_places:
                began = loop.time()
                try:
                    return await loop.run_in_executor(self._threads, _look_up, host)
                finally:
                    self._note(host, slow=loop.time() - began > QUICK)
        async with self._places:
            found = loop.run_in_executor(self._threads, _look_up, host)
            done, _ = await asyncio.wait([found], timeout=QUICK)
            self._note(host, slow=not done)
        return await found

    def _note(self, host: str, *, slow: bool) -> None:
        self._slow.pop(host, None)
        if slow:
            self._slow[host] = None
            if len(self._slow) > REMEMBERED:
                self._slow.popitem(last=False)

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # from Python's own encoding of names
        raise OSError(str(error)) from None
    return [str(entry[4][0]) for entry in found]
