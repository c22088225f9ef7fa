"""A relay to a NATS cluster of three whose leader is killed: it sends again, and the stream has everything in order."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import nats as nats_client
import pytest
from nats.js.api import StreamConfig
from nats.js.errors import ServiceUnavailableError
from tests.brokers import Server, folder, free_port, program
from tests.conftest import QUICK, await_until
from tests.flow.test_run import working
from tests.relays.support import position, reaches

from holdfast import Holdfast
from holdfast.contrib.nats import nats
from holdfast.testing import Kit

EVENTS, KEYS = 1500, 20


@pytest.fixture
def cluster() -> Iterator[dict[str, Server]]:
    routes = {f"n{n}": free_port() for n in range(3)}
    found = {}
    for name, route in routes.items():
        where, port = folder("nats"), free_port()
        (where / "conf").write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{where}/data", sync_interval: always }}\n'
            f'cluster {{ name: c, listen: "127.0.0.1:{route}", routes: '
            f"[{', '.join(f'nats://127.0.0.1:{other}' for other in routes.values())}] }}\n"
        )
        found[name] = Server([program("nats-server"), "-c", str(where / "conf")], port, where)
    for server in found.values():
        server.start()
    yield found
    for server in found.values():
        server.end()


@pytest.mark.long
async def test_a_relay_goes_on_when_the_leader_of_three_is_killed(
    app: Holdfast, akit: Kit, cluster: dict[str, Server]
) -> None:
    url = ",".join(f"nats://127.0.0.1:{server.port}" for server in cluster.values())
    servers = url.split(",")
    akit.database.settings = replace(QUICK, dead_after=5.0, lease=10.0)
    app.relay("out", nats(url, stream="S"), on=["order.*"], route="s.{key}", start="start")

    async def made() -> bool:
        client = await nats_client.connect(servers)
        try:
            await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s.*"], num_replicas=3))
            return True
        except Exception:
            return False  # the cluster has no leader yet
        finally:
            await client.close()

    condition: Callable[[], bool | Awaitable[bool]] = made
    await await_until(condition, "the cluster makes a stream", 60)
    for n in range(EVENTS):
        app.publish("order.paid", {"n": n}, key=f"k{n % KEYS}")
    async with working(akit):
        await reaches(akit, 50)
        client = await nats_client.connect(servers)
        leader = (await client.jetstream().stream_info("S")).cluster
        await client.close()
        assert leader is not None
        assert leader.leader is not None
        cluster[leader.leader].kill()
        killed, before = time.monotonic(), position(akit)
        for n in range(EVENTS, EVENTS + 100):
            app.publish("order.paid", {"n": n}, key=f"k{n % KEYS}")
        await await_until(lambda: position(akit) > before + 600, "it sends again", 60)
        print(f"sending again after {time.monotonic() - killed:.1f} s")
        await await_until(lambda: position(akit) >= EVENTS + 100, "all are sent", 120)
    alive = [f"nats://127.0.0.1:{s.port}" for name, s in cluster.items() if name != leader.leader]
    client = await nats_client.connect(alive)
    js = client.jetstream(timeout=30)
    state = (await js.stream_info("S")).state
    found: dict[str, list[int]] = defaultdict(list)
    for seq in range(1, state.last_seq + 1):
        for _ in range(60):
            try:
                message = await js.get_msg("S", seq)
                break
            except ServiceUnavailableError:  # the two that are left may be electing
                await asyncio.sleep(0.5)
        assert message.subject is not None
        found[message.subject].append(int(json.loads(message.data or b"")["data"]["n"]))
    await client.close()
    assert found == {f"s.k{k}": list(range(k, EVENTS + 100, KEYS)) for k in range(KEYS)}
