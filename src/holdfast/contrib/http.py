"""An HTTP server: `http("https://api.example.com/events")`. Needs the extra `webhooks`.

Each message is one POST of a CloudEvent; the route is the path below the URL. A 2xx confirms it. The guard of docs/egress.md
applies: public addresses, unless `egress` allows more.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from ..egress import Client, Egress, Reply, SendFailed, Target, check_headers, parse, retry_after
from ..errors import ConfigurationError
from ..model.signing import key_of, signature_header
from ..transport import (
    PAUSED,
    Capabilities,
    Confirmed,
    Health,
    Outcome,
    OutMessage,
    Reason,
    Refused,
    RetryLater,
    Transport,
    may_send,
    no_more,
)

MOST_BYTES = 2**20
MOST_AT_ONCE = 100
ITSELF = "/"  # a route that adds nothing to the URL
_CARRIED = ("ce-", "trace")
_PATH = re.compile(r"[A-Za-z0-9._~:@%+/-]+\Z")
_REFUSED: dict[int, Reason] = {
    400: "malformed",
    401: "forbidden",
    403: "forbidden",
    404: "unroutable",
    405: "unroutable",
    410: "unroutable",
    413: "too_large",
    415: "malformed",
    422: "malformed",
}
_OF_ONE_KEY = frozenset((409, 423, 500))  # the others that are tried again concern the whole server


def http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    bearer_env: str | None = None,
    secret: str | None = None,
    secret_env: str | None = None,
    egress: Egress | None = None,
    max_bytes: int = MOST_BYTES,
) -> Transport:
    """A transport to an HTTP server. `headers` go with every request. `bearer_env` names the environment variable of a
    bearer token, `secret_env` that of a secret of Standard Webhooks (`secret`: itself), by which requests are signed."""
    return _Http(url, headers or {}, bearer_env, secret, secret_env, egress, max_bytes)


def make(url: str, options: Mapping[str, str]) -> Transport:
    """For addresses: `https://api.example.com/events?bearer_env=EVENTS_TOKEN&allow_networks=10.1.0.0/16`."""
    no_more(options, "http", ("allow_networks", "bearer_env", "ca_file", "proxy", "secret_env"))
    networks = [text for text in options.get("allow_networks", "").split(",") if text]
    egress = _of(url, networks, options.get("ca_file"), options.get("proxy"))
    return http(
        url, bearer_env=options.get("bearer_env"), secret_env=options.get("secret_env"), egress=egress
    )


def _of(
    url: str, networks: Sequence[str] = (), ca_file: str | None = None, proxy: str | None = None
) -> Egress:
    """The requirements of this URL: its scheme and its port, and no more."""
    try:
        parts = urlsplit(url)
        plain, port = parts.scheme == "http", parts.port
    except ValueError:
        raise ConfigurationError("the address of an HTTP server cannot be read") from None
    return Egress(
        ports=[port or (80 if plain else 443)],
        allow_http=plain,
        allow_networks=networks,
        ca_file=ca_file,
        proxy=proxy,
    )


class _Http:
    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        bearer_env: str | None,
        secret: str | None,
        secret_env: str | None,
        egress: Egress | None,
        max_bytes: int,
    ) -> None:
        if secret is not None and secret_env is not None:
            raise ConfigurationError("secret and secret_env are two ways to say the same: pass one of them")
        self._egress = egress or _of(url)
        self._target: Target = parse(url, self._egress)
        check_headers(headers)
        if secret is not None:
            key_of(secret)
        self._static = dict(headers)
        self._bearer_env, self._secret, self._secret_env = bearer_env, secret, secret_env
        self._headers: dict[str, str] = {}
        self._secrets: list[str] = []
        self._client: Client | None = None
        self.capabilities = Capabilities(order="key", max_bytes=max_bytes, max_batch=MOST_AT_ONCE)

    async def open(self) -> None:
        await self.close()
        self._headers = dict(self._static)
        if self._bearer_env is not None:
            self._headers["authorization"] = f"Bearer {_environment(self._bearer_env)}"
            check_headers(self._headers)
        secret = self._secret if self._secret_env is None else _environment(self._secret_env)
        self._secrets = [] if secret is None else [secret]
        for one in self._secrets:
            key_of(one)
        client = Client(self._egress)
        await client.open()
        self._client = client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def publish(self, batch: Sequence[OutMessage], *, timeout: float) -> Sequence[Outcome]:
        client = self._client
        if client is None:
            raise ConfigurationError("the transport is not open")
        return await asyncio.gather(*(self._post(client, message, timeout) for message in batch))

    async def _post(self, client: Client, message: OutMessage, timeout: float) -> Outcome:
        if len(message.body) > self.capabilities.max_bytes:
            most = self.capabilities.max_bytes
            return Refused("too_large", f"{len(message.body)} bytes, and {most} may be sent")
        url = self._url(message.destination)
        if url is None:
            return Refused("unroutable", f"{message.destination[:200]!r} is no path below the URL")
        carried = {
            name: value for name, value in message.headers.items() if name.lower().startswith(_CARRIED)
        }
        headers = {
            **carried,
            **self._headers,
            "content-type": message.content_type,
            **self._signature(message),
        }
        if not may_send():
            return PAUSED
        return outcome_of(await client.send(url, message.body, headers, timeout=timeout))

    def _url(self, destination: str) -> str | None:
        """The URL with the route behind its path; None: the route is no such thing."""
        parts = urlsplit(self._target.url)
        if destination != ITSELF:
            steps = destination.strip("/").split("/")
            if not _PATH.match(destination) or any(step in ("", ".", "..") for step in steps):
                return None
            parts = parts._replace(path=f"{parts.path.rstrip('/')}/{destination.lstrip('/')}")
        return urlunsplit(parts)

    def _signature(self, message: OutMessage) -> dict[str, str]:
        if not self._secrets:
            return {}
        now = int(time.time())
        return {
            "webhook-id": message.id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature_header(self._secrets, message.id, now, message.body),
        }

    async def check(self, destinations: Iterable[str]) -> Health:
        """Every destination knows itself: HEAD does not say that it is not there or forbidden."""
        if self._client is None:
            return Health(False, "it is not open")
        for destination in destinations:
            url = self._url(destination)
            if url is None:
                return Health(False, f"{destination!r} is no path below the URL")
            found = await self._client.send(url, b"", self._headers, method="HEAD")
            if isinstance(found, SendFailed):
                return Health(False, f"{destination}: {found.kind}: {found.detail}")
            if found.status in (401, 403, 404, 410) or found.status >= 500:
                return Health(False, f"{destination}: HTTP {found.status}")
        return Health(True)


def outcome_of(found: Reply | SendFailed) -> Outcome:
    """The outcome of a message by its reply."""
    if isinstance(found, SendFailed):
        return RetryLater(f"{found.kind}: {found.detail}", unknown=found.unknown)
    if 200 <= found.status < 300:
        return Confirmed()
    if (reason := _REFUSED.get(found.status)) is not None:
        return Refused(reason, f"HTTP {found.status}")
    of_key = found.status in _OF_ONE_KEY
    return RetryLater(
        f"HTTP {found.status}", after=retry_after(found.headers), scope="key" if of_key else "destination"
    )


def _environment(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ConfigurationError(
            f"the environment variable {name} is not set, and an HTTP transport needs it"
        )
    return value
