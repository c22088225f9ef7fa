"""The client: what a server gets, and what comes back."""

import asyncio
import ssl

import pytest
from tests.egress.support import (
    INSIDE,
    NAME,
    OK,
    PUBLIC,
    Site,
    Zone,
    plain,
    post,
    server_tls,
    serving,
    zone,
)

from holdfast import ConfigurationError, Egress
from holdfast.egress import Client, Reply, SendFailed


async def test_a_body_is_posted_and_the_reply_comes_back() -> None:
    async with serving() as site, Client(plain(site.port), resolver=zone()) as client:
        reply = await client.send(
            f"http://{NAME}:{site.port}/hooks?a=%20b", b"hello", {"x-one": "1", "content-type": "text/plain"}
        )
        assert isinstance(reply, Reply)
        assert (reply.status, reply.body, reply.address) == (200, b"ok", PUBLIC)
        assert reply.headers == {"content-length": "2"}
        assert reply.took > 0
        first, *lines = site.heads[0].decode().split("\r\n")
        assert first == "POST /hooks?a=%20b HTTP/1.1"
        found = {line.split(": ")[0].lower(): line.split(": ")[1] for line in lines if line}
        assert found["host"] == f"{NAME}:{site.port}"
        assert (found["x-one"], found["content-type"], found["content-length"]) == ("1", "text/plain", "5")
        assert (found["accept-encoding"], found["user-agent"]) == ("identity", "holdfast")
        assert site.bodies == [b"hello"]


async def test_the_vetted_address_is_called_with_the_name_of_the_url_in_tls_and_host() -> None:
    tls, authority = server_tls()
    async with serving(tls=tls) as site:
        egress = Egress(ports=[site.port], allow_networks=[f"{PUBLIC}/32"], ca_file=authority)
        async with Client(egress, resolver=zone()) as client:
            reply = await post(client, f"https://{NAME}:{site.port}/")
            assert isinstance(reply, Reply), reply
            assert reply.address == PUBLIC
            assert site.names == [NAME]
            assert f"host: {NAME}:{site.port}\r\n".encode() in site.heads[0].lower()


def redirect(status: int, where: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed_unless_asked_for(status: int) -> None:
    async with serving() as second, serving(redirect(status, f"http://{NAME}:{second.port}/on")) as first:
        egress = plain(first.port, ports=[first.port, second.port])
        async with Client(egress, resolver=zone()) as client:
            reply = await post(client, f"http://{NAME}:{first.port}/")
            assert isinstance(reply, Reply)
            assert (reply.status, second.connections) == (status, 0)
            followed = await post(client, f"http://{NAME}:{first.port}/", redirects=1)
            assert isinstance(followed, Reply)
            if status == 303:  # it asks for another kind of request
                assert (followed.status, second.connections) == (303, 0)
            else:
                assert (followed.status, second.bodies) == (200, [b"{}"])
                assert second.heads[0].startswith(b"POST /on ")


async def test_redirects_end() -> None:
    async with serving(redirect(307, "/again")) as site, Client(plain(site.port), resolver=zone()) as client:
        reply = await post(client, f"http://{NAME}:{site.port}/", redirects=5)
        assert isinstance(reply, Reply)
        assert (reply.status, len(site.heads)) == (307, 6)


async def test_a_redirect_to_another_host_takes_no_secret_along() -> None:
    async with (
        serving() as second,
        serving(redirect(307, f"http://other.good.example:{second.port}/")) as first,
    ):
        names = Zone({NAME: [[PUBLIC]], "other.good.example": [[PUBLIC]]})
        egress = plain(first.port, ports=[first.port, second.port])
        headers = {
            "Authorization": "Bearer s",
            "X-Api-Key": "s",
            "Webhook-Id": "1",
            "Content-Type": "text/plain",
        }
        async with Client(egress, resolver=names) as client:
            await client.send(f"http://{NAME}:{first.port}/", b"x", headers, redirects=1)
        assert b"authorization: bearer s\r\n" in first.heads[0].lower()
        sent = second.heads[0].lower()
        assert b"authorization" not in sent
        assert b"x-api-key" not in sent
        assert b"webhook-id: 1\r\n" in sent
        assert b"content-type: text/plain\r\n" in sent


async def test_a_redirect_leads_to_no_other_port_and_not_out_of_tls() -> None:
    tls, authority = server_tls()
    async with serving() as other, serving(redirect(307, f"http://{NAME}:{other.port}/"), tls=tls) as first:
        for ports in ([first.port], [first.port, other.port]):
            egress = plain(first.port, ports=ports, ca_file=authority)
            async with Client(egress, resolver=zone()) as client:
                outcome = await post(client, f"https://{NAME}:{first.port}/", redirects=1)
                assert isinstance(outcome, SendFailed)
                assert outcome.kind == "refused_address"
        assert (len(first.heads), other.connections) == (2, 0)


async def test_a_wrong_certificate_is_refused() -> None:
    tls, authority = server_tls()
    _, stranger = server_tls("somebody.example")
    names = Zone({NAME: [[PUBLIC]], "wrong.good.example": [[PUBLIC]]})

    async def without(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with serving(tls=tls) as site, serving(without) as no_tls:
        for host, trusted, port, text in (
            ("wrong.good.example", authority, site.port, "wrong.good.example"),
            (NAME, stranger, site.port, "certificate"),
            (NAME, None, site.port, "certificate"),
            (NAME, authority, no_tls.port, ""),
        ):
            egress = plain(port, ca_file=trusted)
            async with Client(egress, resolver=names) as client:
                outcome = await post(client, f"https://{host}:{port}/")
                assert isinstance(outcome, SendFailed), outcome
                assert outcome.kind == "tls"
                assert text in outcome.detail
        assert site.heads == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_an_old_version_of_tls_is_refused() -> None:
    tls, authority = server_tls()
    tls.set_ciphers("ALL:@SECLEVEL=0")
    tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_1
    async with (
        serving(tls=tls) as site,
        Client(plain(site.port, ca_file=authority), resolver=zone()) as client,
    ):
        outcome = await post(client, f"https://{NAME}:{site.port}/")
        assert isinstance(outcome, SendFailed)
        assert outcome.kind in ("tls", "connect")  # the server hangs up; it may do so before we have read why
        assert site.heads == []


async def test_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(host=INSIDE) as proxy, serving() as site:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://{INSIDE}:{proxy.port}")
        async with Client(plain(site.port), resolver=zone()) as client:
            reply = await post(client, f"http://{NAME}:{site.port}/")
            assert isinstance(reply, Reply)
        assert (site.connections, proxy.connections) == (1, 0)


async def test_a_proxy_resolves_and_vets() -> None:
    """A tunnel to whatever it is asked for, but for one name."""
    tls, authority = server_tls()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        site.heads.append(head)
        if head.startswith(b"CONNECT refused."):
            writer.write(b"HTTP/1.1 407 no\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        inner, outer = await asyncio.open_connection(PUBLIC, target.port)
        writer.write(b"HTTP/1.1 200 ok\r\n\r\n")

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while chunk := await source.read(65536):
                to.write(chunk)
            to.close()

        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    names = Zone({})
    async with serving(tls=tls) as target, serving(tunnel, host=INSIDE) as proxy:
        egress = Egress(ports=[target.port], proxy=f"http://{INSIDE}:{proxy.port}", ca_file=authority)
        async with Client(egress, resolver=names) as client:
            reply = await post(client, f"https://{NAME}:{target.port}/")
            assert isinstance(reply, Reply), reply
            assert (reply.status, target.names) == (200, [NAME])
            assert proxy.heads[0].startswith(f"CONNECT {NAME}:{target.port} ".encode())
            outcome = await post(client, f"https://refused.good.example:{target.port}/")
            assert isinstance(outcome, SendFailed)
            assert (outcome.kind, outcome.detail) == ("refused_address", "the proxy replied 407")
            literal = await post(client, f"https://{INSIDE}:{target.port}/")
            assert isinstance(literal, SendFailed)
            assert literal.kind == "refused_address"
        assert (names.calls, len(proxy.heads)) == ({}, 2)


async def test_connections_are_kept_and_cookies_are_not() -> None:
    cookie = b"HTTP/1.1 200 OK\r\nset-cookie: a=b; Path=/\r\nset-cookie: c=d\r\ncontent-length: 2\r\n\r\nok"
    names = zone()
    async with serving(cookie) as site, Client(plain(site.port), resolver=names) as client:
        for _ in range(5):
            reply = await post(client, f"http://{NAME}:{site.port}/")
            assert isinstance(reply, Reply)
            assert reply.headers["set-cookie"] == "a=b; Path=/, c=d"
            assert reply.address == PUBLIC
        assert (site.connections, len(site.heads), names.calls[NAME]) == (1, 5, 1)
        assert [head for head in site.heads if b"cookie" in head.lower()] == []


async def test_a_kept_connection_is_not_used_under_another_policy() -> None:
    async with serving() as site, Client(plain(site.port), resolver=zone()) as client:
        url = f"http://{NAME}:{site.port}/"
        assert isinstance(await post(client, url), Reply)
        await client.apply(plain(site.port, deny_networks=[f"{PUBLIC}/32"]))
        outcome = await post(client, url)
        assert isinstance(outcome, SendFailed)
        assert outcome.kind == "refused_address"
        assert (site.connections, len(site.heads)) == (1, 1)
        await client.apply(plain(site.port))
        assert isinstance(await post(client, url), Reply)
        assert (site.connections, len(site.heads)) == (2, 2)


async def test_a_request_under_way_ends_under_its_policy() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Site) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go.wait()
        writer.write(OK)
        await writer.drain()
        await reader.read()

    async with serving(slow) as site, Client(plain(site.port), resolver=zone()) as client:
        task = asyncio.create_task(post(client, f"http://{NAME}:{site.port}/"))
        await asked.wait()
        await client.apply(plain(site.port, deny_networks=[f"{PUBLIC}/32"]))
        go.set()
        assert isinstance(await task, Reply)


async def test_many_connections_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.egress.wire.MOST_KEPT", 2)
    names = Zone({f"n{n}.good.example": [[PUBLIC]] for n in range(6)})
    async with serving() as site, Client(plain(site.port), resolver=names) as client:
        for name in names.names:
            assert isinstance(await post(client, f"http://{name}:{site.port}/"), Reply)
        closing = [head for head in site.heads if b"connection: close" in head.lower()]
        assert len(closing) == 3


async def test_texts_for_tenants_have_no_address() -> None:
    names = Zone({NAME: [[PUBLIC]], "inside.good.example": [[INSIDE]]})
    async with serving() as site:
        port = site.port
    async with Client(plain(port), resolver=names) as client:
        outcomes = {
            host: await post(client, f"http://{host}:{port}/secret")
            for host in (NAME, "inside.good.example", "missing.good.example", INSIDE)
        }
    found = {host: outcome for host, outcome in outcomes.items() if isinstance(outcome, SendFailed)}
    assert [outcome.kind for outcome in found.values()] == [
        "connect",
        "refused_address",
        "dns",
        "refused_address",
    ]
    texts = [outcome.public for outcome in found.values()]
    assert texts[1] == texts[2] == texts[3] == "the host name does not lead to an address that may be called"
    assert not any("127." in text for text in texts)
    assert (found[NAME].address, found["inside.good.example"].address) == (PUBLIC, INSIDE)
    assert found["inside.good.example"].detail == "127.0.0.1 is not public: in 127.0.0.0/8 (loopback)"
    assert not any("secret" in f"{outcome}" for outcome in found.values())
    assert not any(outcome.unknown for outcome in found.values())


async def test_the_system_resolves_where_no_other_resolver_is_given() -> None:
    async with Client(Egress(timeout=5)) as client:
        outcome = await post(client, "https://there-is-no-such-name.invalid/")
    assert isinstance(outcome, SendFailed)
    assert outcome.kind in ("dns", "timeout")


async def test_wrong_use_is_refused_in_words() -> None:
    client = Client()
    with pytest.raises(ConfigurationError, match="the client is not open"):
        await post(client, "https://a.example/")
    await client.open()
    with pytest.raises(ConfigurationError, match="the header x must be one line"):
        await client.send("https://a.example/", b"", {"x": "a\nb"})
    await client.close()
    await client.close()
