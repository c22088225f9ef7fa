"""The client: what a server gets, and what comes back."""

from tests.egress.support import NAME, PUBLIC, plain, post, server_tls, serving, zone

from holdfast import Egress
from holdfast.egress import Client, Reply


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
