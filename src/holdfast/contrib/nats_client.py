"""nats-py's client, and TLS where it is asked for.

By itself the client encrypts only when the server's first line says that it must. So that line, which nothing protects,
could take TLS away from an address that begins with tls://, and the password would go over the wire as it is.
"""

import functools
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..transport import MissingExtra, shown_url, write_under_lease


def servers_of(url: str) -> list[str]:
    """The servers of an address, which are separated by commas."""
    servers = [part.strip() for part in url.split(",") if part.strip()]
    if not servers or any(urlsplit(server).scheme not in ("nats", "tls") for server in servers):
        raise ConfigurationError(f"a NATS address begins with nats:// or tls://, not {shown_url(url)!r}")
    return servers


@functools.cache
def client_class() -> Any:
    try:
        from nats.aio.client import Client
        from nats.errors import Error
    except ImportError:
        raise MissingExtra("nats-py", "nats") from None
    if not hasattr(Client, "_process_info"):
        raise ConfigurationError("this release of nats-py is not known: nothing makes sure that it encrypts")

    class Encrypting(Client):
        async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
            """Called with the server's first line, before anything is sent."""
            server = self._current_server
            wanted = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
            if wanted and initial_connection and not info.get("tls_required"):
                if not info.get("tls_available"):
                    raise Error("nats: TLS was asked for, and the server does not offer it")
                info["tls_required"] = True
            await super()._process_info(info, initial_connection)

    return Encrypting


def guard_writes(client: Any) -> None:
    """The client collects what it publishes and writes it later, from a task of its own."""
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is None:
        raise ConfigurationError(
            "this release of nats-py is not known: nothing can keep it from writing after a lease"
        )
    write_under_lease(writer)
