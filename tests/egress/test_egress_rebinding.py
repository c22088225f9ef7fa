"""A real name server that changes its answers, the system's resolver, real connections: in namespaces of their own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = r"""
import asyncio, collections, fcntl, json, socket, struct, threading
from holdfast.egress import Client, Egress, Reply
GOOD, BAD = "127.0.0.2", "127.0.0.1"
hits, asked = collections.Counter(), collections.Counter()

def answers(name, kind):
    how, asked[name, kind] = name.split(".")[0], asked[name, kind] + 1
    first = asked[name, kind] == 1
    if kind == 28:
        return ["::1"] if how == "six" else []
    return {"once": [GOOD if first else BAD], "turns": [GOOD if asked[name, kind] % 2 else BAD],
            "both": [GOOD, BAD], "six": [GOOD], "steady": [GOOD]}[how]

def serve_names(server):
    while True:
        data, peer = server.recvfrom(2048)
        i, labels = 12, []
        while data[i]:
            labels.append(data[i + 1:i + 1 + data[i]].decode())
            i += data[i] + 1
        (kind,) = struct.unpack(">H", data[i + 1:i + 3])
        found = answers(".".join(labels), kind)
        reply = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(found), 0, 0) + data[12:i + 5]
        for one in found:
            raw = socket.inet_pton(socket.AF_INET6 if ":" in one else socket.AF_INET, one)
            reply += struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(raw)) + raw
        server.sendto(reply, peer)

async def serve(reader, writer):
    hits[writer.get_extra_info("sockname")[0]] += 1
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    await writer.drain()
    writer.close()

def raise_loopback():
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x41, b""))  # SIOCSIFFLAGS: up and running

async def main():
    raise_loopback()
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.9", 53))
    threading.Thread(target=serve_names, args=(names,), daemon=True).start()
    servers = [await asyncio.start_server(serve, BAD, 0)]
    port = servers[0].sockets[0].getsockname()[1]
    servers.append(await asyncio.start_server(serve, GOOD, port))
    try:
        servers.append(await asyncio.start_server(serve, "::1", port))
    except OSError:
        pass  # a machine without IPv6
    egress = Egress(allow_http=True, ports=[port], allow_networks=[GOOD + "/32"])
    found = {}
    for how in ("steady", "once", "turns", "both", "six"):
        out = collections.Counter()
        async with Client(egress) as client:
            for _ in range(40):
                got = await client.send(f"http://{how}.example.com:{port}/", b"{}", {})
                out[str(got.status) if isinstance(got, Reply) else got.kind] += 1
        found[how] = dict(out)
    print(json.dumps({"found": found, "hits": dict(hits)}))

asyncio.run(main())
"""


UNSHARE = ["unshare", "--map-root-user", "--mount", "--net"]


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"]).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="namespaces are not to be had here")
def test_a_name_server_that_changes_its_answers_leads_nowhere_inside(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.9\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = 'mount --bind "$1" /etc/resolv.conf && exec "$2" "$3"'
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", command, "sh", *map(str, (
            tmp_path / "resolv.conf", sys.executable, tmp_path / "program.py"))],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    refused = "refused_address"
    assert found["found"] == {
        "steady": {"200": 40},
        "once": {"200": 1, refused: 39},
        "turns": {"200": 20, refused: 20},
        "both": {refused: 40},
        "six": {refused: 40},
    }
    assert found["hits"] == {"127.0.0.2": 61}, "nothing else was connected to"
