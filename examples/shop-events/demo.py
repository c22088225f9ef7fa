"""The demo of the boundaries: orders go to a broker and a warehouse, payments come back, and everything is broken once.

This file makes the environment of the processes; play.py is what happens. The exit code is 1 if a promise was broken.
"""

import base64
import os
import secrets
import signal
import socket
from pathlib import Path

import psycopg
from examples.shop.show import Screen
from examples.stage import interrupt

from holdfast import HoldfastError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def prepare_environment() -> None:
    """The demo's own database and nobody else's settings, for this process and for those that it starts."""
    os.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        del os.environ[name]
    port = free_port()
    os.environ.update(
        HOLDFAST_DATABASE_URL="embedded:.holdfast/demo-events/data",
        HOLDFAST_CONFIG=os.devnull,
        PYTHONPATH=os.pathsep.join([str(HERE), str(ROOT)]),
        NATS_PORT=port,
        NATS_URL=f"nats://127.0.0.1:{port}",
        WAREHOUSE_PORT=free_port(),
        WEB_PORT=free_port(),
        PAYMENTS_SECRET=f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}",
    )


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    prepare_environment()
    from play import play  # reads the environment

    screen = Screen()
    screen.write(
        "A shop places orders. Each order and its event are one transaction; from the log the event goes to a"
    )
    screen.write("broker, to a warehouse and into a table. Payments come back and make the next event.")
    try:
        return play(screen)
    except KeyboardInterrupt:
        screen.write("Interrupted: everything was stopped.")
        return 130
    except (HoldfastError, psycopg.Error, OSError) as error:
        screen.write(f"{type(error).__name__}: {error}", "red")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
