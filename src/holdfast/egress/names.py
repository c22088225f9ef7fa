"""Names become addresses here, once per connection."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

THREADS = 32


class SystemResolver:
    """The system's resolver, in threads of its own: a name that takes long holds up names, and nothing else.

    It asks for the full name, with a last dot: the search list of the machine is not tried, the hosts file is not read."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-names")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, host, port)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(f"{host}.", port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # from Python's own encoding of names
        raise OSError(str(error)) from None
    return [str(entry[4][0]) for entry in found]
