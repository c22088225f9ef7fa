"""Every known way inside. The victim listens on 127.0.0.1 and ::1, on the port that is allowed, and nobody may come."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote, urljoin, urlsplit

import pytest
from tests.egress.support import INSIDE, NAME, PUBLIC, Site, Zone, plain, post, serving
from tests.egress.vectors import INSIDE_4, INSIDE_6, SCOPED, SPELLINGS, bracketed, urls

from holdfast.egress import Client, NotAllowed, Reply, SendFailed, Target
from holdfast.egress.wire import ATTEMPT, Attempt, Line

ANSWERS = (*INSIDE_4, *INSIDE_6, *SCOPED)


class Hostile(Zone):
    """Every name that it does not know leads inside."""

    async def __call__(self, host: str, port: int) -> list[str]:
        if host not in self.names:
            self.names[host] = [[INSIDE]]
        return await super().__call__(host, port)


async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
    """Sends everybody on to the path that they asked for."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        where = unquote(head.split(b" ")[1].removeprefix(b"/").decode("ascii"))
        site.heads.append(head)
        writer.write(b"HTTP/1.1 307 x\r\nlocation: " + where.encode() + b"\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()


@contextlib.asynccontextmanager
async def victim() -> AsyncIterator[tuple[int, list[Site]]]:
    """The port where the inside listens, on 127.0.0.1 and, where the machine has it, on ::1."""
    async with contextlib.AsyncExitStack() as stack:
        inside = await stack.enter_async_context(serving(host=INSIDE))
        sites = [inside]
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", inside.port))
            probe.close()
            sites.append(await stack.enter_async_context(serving(host="::1", port=inside.port)))
        yield inside.port, sites


def refused(outcome: Reply | SendFailed) -> bool:
    return isinstance(outcome, SendFailed) and outcome.kind == "refused_address"


def test_there_are_many_attacks() -> None:
    assert len(set(urls(1))) >= 150
    assert len(set(ANSWERS)) >= 70


async def test_no_url_leads_inside() -> None:
    async with victim() as (port, sites), Client(plain(port), resolver=Hostile({})) as client:
        attacks = urls(port)
        outcomes = await asyncio.gather(*(post(client, url) for url in attacks))
        assert [url for url, outcome in zip(attacks, outcomes, strict=True) if not refused(outcome)] == []
        assert [site.connections for site in sites] == [0] * len(sites)


async def test_no_answer_of_dns_leads_inside() -> None:
    names = {f"n{n}.good.example": [[answer]] for n, answer in enumerate(ANSWERS)}
    async with victim() as (port, sites), Client(plain(port), resolver=Zone(names)) as client:
        outcomes = await asyncio.gather(*(post(client, f"http://{name}:{port}/") for name in names))
        assert [a for a, outcome in zip(ANSWERS, outcomes, strict=True) if not refused(outcome)] == []
        assert [site.connections for site in sites] == [0] * len(sites)


async def test_one_bad_answer_among_good_ones_refuses_the_name() -> None:
    names = {
        f"n{n}.good.example": [list(answers)]
        for n, answers in enumerate(
            itertools.chain.from_iterable(
                itertools.permutations((PUBLIC, "93.184.216.34", bad)) for bad in ANSWERS
            )
        )
    }
    async with victim() as (port, sites), serving(port=port) as good:
        client = Client(plain(port), resolver=Zone(names))
        await client.open()
        outcomes = await asyncio.gather(*(post(client, f"http://{name}:{port}/") for name in names))
        await client.close()
        assert [o for o in outcomes if not refused(o)] == []
        assert [site.connections for site in (good, *sites)] == [0] * (len(sites) + 1)


def joined(base: str, url: str) -> str | None:
    """The host that a redirect leads to, as the standard library reads it."""
    try:
        return urlsplit(urljoin(base, url)).hostname
    except ValueError:
        return None


async def test_no_redirect_leads_inside() -> None:
    names = {f"n{n}.good.example": [[answer]] for n, answer in enumerate(ANSWERS)}
    zone = Hostile({NAME: [[PUBLIC]], **names})
    async with victim() as (port, sites), serving(redirecting, port=port) as site:
        targets = [*urls(port), *(f"http://{name}:{port}/" for name in names)]
        targets += [f"//{bracketed(address)}:{port}/" for address in (*INSIDE_4, *INSIDE_6)]
        targets += [f"//{host}:{port}/" for host in SPELLINGS]
        targets = [
            url for url in targets if url.strip() and len(url) < 600 and "\n" not in url and "\x00" not in url
        ]
        base = f"http://{NAME}:{port}/"
        async with Client(plain(port), resolver=zone) as client:
            outcomes = await asyncio.gather(
                *(post(client, f"{base}{quote(url, safe='')}", redirects=1) for url in targets)
            )
        # Some are paths, as a redirect: they lead back to the same host.
        inside = [(url, o) for url, o in zip(targets, outcomes, strict=True) if joined(base, url) != NAME]
        assert len(inside) >= 250
        assert [one for one in inside if not refused(one[1])] == []
        assert [one.connections for one in sites] == [0] * len(sites)
        assert len(site.heads) >= len(targets)


async def test_what_is_dialled_is_vetted_by_itself() -> None:
    """Literals that came past the parser: aiohttp asks no resolver about them."""
    async with victim() as (port, sites):
        line = Line(plain(port), Zone({}))
        token = ATTEMPT.set(Attempt())
        try:
            for address in (*INSIDE_4, *INSIDE_6):
                with pytest.raises(NotAllowed):
                    await line.post(Target("http", address, port, "/", True), b"", {})
        finally:
            ATTEMPT.reset(token)
            await line.close()
        assert [site.connections for site in sites] == [0] * len(sites)


async def test_a_name_that_changes_its_answer_is_resolved_once_and_refused_later() -> None:
    name = "rebind.good.example"
    zone = Zone({name: [[PUBLIC], [INSIDE]]})
    closing = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    async with victim() as (port, sites), serving(closing, port=port) as site:
        async with Client(plain(port), resolver=zone) as client:
            first = await post(client, f"http://{name}:{port}/")
            assert isinstance(first, Reply)
            assert (first.address, zone.calls[name], site.connections) == (PUBLIC, 1, 1)
            second = await post(client, f"http://{name}:{port}/")
            assert refused(second)
            assert (zone.calls[name], site.connections) == (2, 1)
        assert [one.connections for one in sites] == [0] * len(sites)
