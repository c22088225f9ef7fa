"""Servers that misbehave, a zone of names, and certificates, all on loopback.

127.0.0.2 plays a public address (the tests allow it); 127.0.0.1 plays the inside of the network, where nobody may come.
"""

import asyncio
import contextlib
import datetime
import functools
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast import Egress
from holdfast.egress import Client, Reply, SendFailed

PUBLIC, INSIDE = "127.0.0.2", "127.0.0.1"
NAME = "hooks.good.example"
CERTIFIED = (NAME, "rebind.good.example", "other.good.example")
BACKLOG = 2048
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A server on loopback that notes who came and what was asked."""

    def __init__(self, port: int, heads: list[bytes], names: list[str | None]) -> None:
        self.port, self.heads, self.names = port, heads, names
        self.connections = 0
        self.bodies: list[bytes] = []


async def replies(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site, reply: bytes
) -> None:
    """One reply to each request of a connection."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        site.heads.append(head)
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        site.bodies.append(await reader.readexactly(length))
        writer.write(reply)
        await writer.drain()
        if b"connection: close" in reply.lower() + head.lower():
            return


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter, Site], Awaitable[None]] | bytes = OK,
    *,
    host: str = PUBLIC,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Site]:
    site = Site(0, [], [])
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        site.connections += 1
        try:
            if isinstance(handler, bytes):
                await replies(reader, writer, site, handler)
            else:
                await handler(reader, writer, site)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: site.names.append(name)
    # Room for all that a test sends at once: what finds none is tried again by the kernel after 1, 3 and 7 seconds.
    server = await asyncio.start_server(serve, host, port, ssl=tls, backlog=BACKLOG)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Zone:
    """A resolver that counts. Each name has a list of answers; the last one stays."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.names = {name: [list(answer) for answer in answers] for name, answers in names.items()}
        self.calls: Counter[str] = Counter()

    async def __call__(self, host: str, port: int) -> list[str]:
        self.calls[host] += 1
        if host not in self.names:
            raise OSError("no such name")
        answers = self.names[host]
        return answers[min(self.calls[host], len(answers)) - 1]


def zone(**names: str) -> Zone:
    return Zone(
        {NAME: [[PUBLIC]], **{name.replace("_", "."): [[address]] for name, address in names.items()}}
    )


@functools.cache
def certificates(*names: str) -> tuple[str, Path]:
    """The file of an authority, and the folder with cert.pem and key.pem that it signed for some names."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-egress-"))
    now = datetime.datetime.now(datetime.UTC)
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])

    def signed(subject: x509.Name, public: Any, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root = signed(root_name, root_key.public_key(), (x509.BasicConstraints(ca=True, path_length=0), True))
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    leaf = signed(x509.Name([]), key.public_key(), (alternatives, True))
    (folder / "ca.pem").write_bytes(root)
    (folder / "cert.pem").write_bytes(leaf)
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(folder / "ca.pem"), folder


def server_tls(*names: str) -> tuple[ssl.SSLContext, str]:
    """A context for a server, and the file of the authority that makes it trusted."""
    authority, folder = certificates(*(names or CERTIFIED))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, authority


def plain(port: int, **options: Any) -> Egress:
    """A policy for a server without TLS on PUBLIC."""
    return Egress(**{"allow_http": True, "ports": [port], "allow_networks": [f"{PUBLIC}/32"], **options})


async def post(client: Client, url: str, **options: Any) -> Reply | SendFailed:
    return await client.send(url, b"{}", {"content-type": "application/json"}, **options)
