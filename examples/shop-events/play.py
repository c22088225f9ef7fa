"""What the demo does: it starts everything, trades, breaks one thing after the other, and reads the verdict.

prepare     a fresh embedded server, NATS, the shop's web server, two workers, the warehouse
trade       place orders and pay for them; meanwhile NATS is killed, the warehouse is down, a worker is killed
settle      wait until nothing is on its way any more
judge       read the verdict from all ledgers
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import random
import shutil
import socket
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import nats
import psycopg
import storefront
from examples.shop.show import Screen
from examples.stage import LIMIT, Fleet, TimeUpError, time_limit, unfinished, worker
from ledgers import Books, compare, read_broker, read_log, read_warehouse, verdict_lines

from holdfast import HoldfastError
from holdfast.db import embedded

HERE = Path(__file__).resolve().parent
PLACE = Path(".holdfast/demo-events")  # kept after the run
DATA, LOGS, STORE, LEDGER = PLACE / "data", PLACE / "logs", PLACE / "nats", PLACE / "warehouse.jsonl"
SECONDS = 12.0  # of trade
ORDERS_PER_SECOND = 30
CUSTOMERS = 20
REPEATS = 10  # every 10th payment is sent three times at once
PROCESSES = ("nats", "warehouse", "web", "worker-1", "worker-2")
SUBSCRIBERS = (storefront.relay, storefront.hooks, storefront.totals)
PLAN = (  # what is broken, and when
    (1.0, "kill", "warehouse"),
    (2.0, "kill", "nats"),
    (4.0, "kill", "worker-1"),
    (7.0, "start", "warehouse"),
    (8.0, "start", "nats"),
)


class Provider:
    """The payment provider: signs what it sends, sends it until it gets 2xx, and sometimes three times at once."""

    def __init__(self, url: str, secret: str) -> None:
        self._url, self._key = url, base64.b64decode(secret.removeprefix("whsec_"))
        self.acknowledged: set[int] = set()  # orders
        self.requests: list[str] = []
        self.gave_up = False

    def pay(self, client: httpx.Client, order_id: int, cents: int) -> None:
        payment, body = f"pay_{order_id}", json.dumps({"order_id": order_id, "cents": cents})
        while order_id not in self.acknowledged and not self.gave_up:
            stamp = str(int(time.time()))
            signed = hmac.digest(self._key, f"{payment}.{stamp}.{body}".encode(), hashlib.sha256)
            headers = {
                "webhook-id": payment,
                "webhook-timestamp": stamp,
                "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
                "content-type": "application/json",
            }
            self.requests.append(payment)
            with suppress(httpx.HTTPError):
                if client.post(self._url, content=body, headers=headers).is_success:
                    self.acknowledged.add(order_id)
                    return
            time.sleep(0.2)


class Stage:
    """The processes and their commands."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.fleet = Fleet(LOGS)
        self.ports = {name: int(os.environ[f"{name.upper()}_PORT"]) for name in ("nats", "warehouse", "web")}

    def _command(self, name: str) -> list[str]:
        port = str(self.ports.get(name, 0))
        if name == "nats":
            program = Path(sys.executable).parent / "nats-server"
            return [str(program), "-a", "127.0.0.1", "-p", port, "-js", "-sd", str(STORE)]
        if name == "warehouse":
            return [sys.executable, str(HERE / "warehouse.py"), port, str(LEDGER)]
        if name == "web":
            return [
                sys.executable,
                "-m",
                "uvicorn",
                "storefront:web",
                "--port",
                port,
                "--log-level",
                "warning",
            ]
        return worker("storefront:shop")

    def start(self, name: str) -> None:
        self.fleet.start(name, self._command(name))
        if port := self.ports.get(name):
            while not self._listens(port):
                self.fleet.check()
                time.sleep(0.02)

    def kill(self, name: str) -> None:
        (pid,) = (pid for pid, known in self.fleet.pids().items() if known == name)
        self.fleet.kill(pid)
        self.screen.say(f"kill -9 {pid}: {name} is dead", "bold red")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    @staticmethod
    def _listens(port: int) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False


class Trade:
    """Orders are placed and paid for, while PLAN breaks one thing after the other."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._random = random.Random(9182)
        self._plan = list(PLAN)
        self.provider = Provider(f"{stage.url}/hooks/payments", os.environ["PAYMENTS_SECRET"])
        self.placed = 0

    def to_the_end(self) -> None:
        limits = httpx.Limits(max_connections=20)
        with httpx.Client(timeout=10, limits=limits) as client, ThreadPoolExecutor(16) as threads:
            try:
                for one in self._trade(client, threads):
                    one.result()
            except BaseException:
                self.provider.gave_up = True
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _trade(self, client: httpx.Client, threads: ThreadPoolExecutor) -> list[Future[None]]:
        doing: list[Future[None]] = []
        began = time.monotonic()
        while (now := time.monotonic() - began) < SECONDS or self._plan:
            while self._plan and self._plan[0][0] <= now:
                self._break(*self._plan.pop(0)[1:])
            while self.placed < min(now, SECONDS) * ORDERS_PER_SECOND:
                self.placed += 1
                doing.append(threads.submit(self._order, client, self.placed))
            self._stage.fleet.check()
            time.sleep(0.02)
        return doing

    def _break(self, act: str, name: str) -> None:
        if act == "kill":
            self._stage.kill(name)
        else:
            self._stage.start(name)
            self._stage.screen.say(f"{name} is back", "bold green")

    def _order(self, client: httpx.Client, number: int) -> None:
        cents = self._random.randint(100, 9900)
        place = {"customer": number % CUSTOMERS, "cents": cents}
        order_id = (
            client.post(f"{self._stage.url}/orders", params=place).raise_for_status().json()["order_id"]
        )
        if number % REPEATS == 0:
            with ThreadPoolExecutor(3) as copies:
                for done in [copies.submit(self.provider.pay, client, order_id, cents) for _ in range(3)]:
                    done.result()
        else:
            self.provider.pay(client, order_id, cents)


def prepare(stage: Stage) -> None:
    storefront.create_tables()  # starts the database, too
    endpoint = storefront.hooks.endpoints.create(
        tenant="warehouse",
        url=f"http://127.0.0.1:{stage.ports['warehouse']}/hooks",
        events=["order.*"],
        ordered=True,
    )
    assert endpoint.secret is not None
    os.environ["WAREHOUSE_SECRET"] = endpoint.secret.value  # shown once
    for name in PROCESSES:
        stage.start(name)
    asyncio.run(make_stream())
    with psycopg.connect(storefront.shop.database.dsn, autocommit=True) as conn:
        # A new subscriber begins with what is published after a worker has made it known.
        while conn.execute("SELECT FROM holdfast.subscriptions").rowcount < len(SUBSCRIBERS):
            stage.fleet.check()
            time.sleep(0.05)
    stage.screen.say(f"{', '.join(PROCESSES)} and PostgreSQL run; their logs are in {LOGS}")


async def make_stream() -> None:
    client = await nats.connect(os.environ["NATS_URL"])
    try:
        await client.jetstream().add_stream(name=storefront.STREAM, subjects=["shop.>"])
    finally:
        await client.close()


def on_the_way() -> int:
    """Events that a subscriber has not passed, webhooks that are not delivered, payments that are not booked."""
    with psycopg.connect(storefront.shop.database.dsn, autocommit=True) as conn:
        live = conn.execute(
            "SELECT FROM holdfast.jobs WHERE status NOT IN ('completed', 'cancelled', 'dead_letter')"
        )
        return live.rowcount + sum(one.lag()[0] for one in SUBSCRIBERS)


def settle(stage: Stage) -> None:
    """Webhooks take longest: after five failures in a row nobody calls the warehouse for half a minute."""
    said = 0
    while (left := on_the_way()) > 0:
        if left != said:
            stage.screen.say(f"{left} on their way")
            said = left
        stage.fleet.check()
        time.sleep(0.5)


def judge(trade: Trade, screen: Screen) -> int:
    log = read_log(storefront.shop)
    arrived = [
        compare("the broker", log, asyncio.run(read_broker(os.environ["NATS_URL"], storefront.STREAM))),
        compare("the warehouse", log, read_warehouse(LEDGER)),
    ]
    with psycopg.connect(storefront.shop.database.dsn, autocommit=True) as conn:
        row = conn.execute(
            "SELECT count(*), count(paid_at), coalesce(sum(cents) FILTER (WHERE paid_at IS NOT NULL), 0),"
            " (SELECT coalesce(sum(cents), 0) FROM customer_totals) FROM orders"
        ).fetchone()
    placed, paid, cents, projected = row or (0, 0, 0, 0)
    books = Books(
        placed=placed,
        acknowledged=len(trade.provider.acknowledged),
        sent=len(trade.provider.requests),
        paid=paid,
        paid_events=sum(event.type == "order.paid" for event in log),
        cents=cents,
        projected=projected,
        lag=on_the_way(),
    )
    wrong = books.broken() + [words for there in arrived for words in there.broken()]
    *lines, verdict = verdict_lines(books, arrived, wrong)
    for line in ("", *lines):
        screen.write(line)
    screen.write(verdict, "bold red" if wrong else "bold green")
    return 1 if wrong else 0


def play(screen: Screen) -> int:
    embedded.reset(DATA)
    shutil.rmtree(PLACE, ignore_errors=True)
    LOGS.mkdir(parents=True)
    stage = Stage(screen)
    trade: Trade | None = None
    try:
        try:
            with time_limit(LIMIT):
                prepare(stage)
                trade = Trade(stage)
                trade.to_the_end()
                settle(stage)
        except TimeUpError:
            if trade is None:
                raise HoldfastError(f"Not everything had started within {LIMIT:g} s.") from None
            screen.write(unfinished(), "bold yellow")
            return 1
        with time_limit(60.0):
            return judge(trade, screen)
    finally:
        stage.fleet.stop(patience=4.0)
        storefront.shop.close()
