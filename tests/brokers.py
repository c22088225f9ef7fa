"""Real brokers for tests: each is started once per session, on loopback, in a folder of its own, and can be broken."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def program(name: str) -> str:
    """A program beside our Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = (
        str(beside)
        if beside.exists()
        else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin:/usr/lib/rabbitmq/bin")
    )
    if found is None:
        raise AssertionError(f"{name} is not on this machine: scripts/run_tests.py installs it")
    return found


def _states(group: int) -> list[str]:
    """What each thread of a group of processes does, as the kernel names it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[2]) == group:
                for thread in (stat.parent / "task").glob("*/stat"):
                    found.append(thread.read_text().rpartition(")")[2].split()[0])
    return found


class Server:
    """A process that answers on a port. `kill` is SIGKILL, `freeze` is SIGSTOP."""

    def __init__(
        self, command: Sequence[str], port: int, folder: Path, env: dict[str, str] | None = None
    ) -> None:
        self.command, self.port, self.folder = list(command), port, folder
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            self.command,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        log.close()
        deadline = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.command[0]} did not start: {(self.folder / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.01)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None
        while self._answers():  # the last of its processes is on its way out
            time.sleep(0.01)

    def freeze(self, *, wait: bool = True) -> None:
        """Returns when every thread of it has stopped: the signal alone takes a while to arrive."""
        self._signal(signal.SIGSTOP)
        while (
            wait
            and self._process is not None
            and not all(state in "TtZX" for state in _states(self._process.pid))
        ):
            time.sleep(0.005)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        self.thaw()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-"))


def nats_server(extra: str = "") -> Server:
    where, port = folder("nats"), free_port()
    (where / "conf").write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{where}/data", sync_interval: always }}\n{extra}\n'
    )
    server = Server([program("nats-server"), "-c", str(where / "conf")], port, where)
    server.start()
    return server


def redis_server() -> Server:
    """Every write is on disk before it is confirmed."""
    where, port = folder("redis"), free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(where), "--appendonly", "yes"]
    server = Server([program("redis-server"), *options, "--appendfsync", "always", "--save", ""], port, where)
    server.start()
    return server


class Rabbit(Server):
    """RabbitMQ, with a port mapper of its own: one that Erlang starts by itself would outlive the tests."""

    def __init__(self, where: Path, port: int, mapper_port: int, options: str = "") -> None:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
            "HOME": str(where),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"holdfast{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(where / "data"),
            "RABBITMQ_LOG_BASE": str(where / "logs"),
            "RABBITMQ_PID_FILE": str(where / "pid"),
            "RABBITMQ_CONFIG_FILE": str(where / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(where / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} +S 2:2 {options}",
        }
        (where / "plugins").write_text("[].\n")
        super().__init__(["/usr/lib/rabbitmq/bin/rabbitmq-server"], port, where, env)
        mapper = [program("epmd"), "-port", str(mapper_port), "-address", "127.0.0.1"]
        self._mapper = subprocess.Popen(mapper, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def control(self, *words: str) -> None:
        """rabbitmqctl."""
        subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", *words], env=self._env, check=True, capture_output=True
        )

    def end(self) -> None:
        super().end()
        self._mapper.kill()
        self._mapper.wait()


def rabbit_server(options: str = "") -> Rabbit:
    """`options`: of Erlang, such as `-rabbit max_message_size 1000`."""
    server = Rabbit(folder("rabbit"), free_port(), free_port(), options)
    server.start()
    return server


def http_server() -> Server:
    """Stores what is posted to it, on disk before it says so: tests/relays/http_server.py."""
    where, port = folder("http"), free_port()
    script = Path(__file__).parent / "relays" / "http_server.py"
    server = Server([sys.executable, "-I", str(script), str(port), str(where)], port, where)
    server.start()
    return server


def moto_server() -> Server:
    """SQS, SNS and IAM as moto plays them. It has no disk: what is killed is empty afterwards."""
    where, port = folder("moto"), free_port()
    server = Server([program("moto_server"), "-H", "127.0.0.1", "-p", str(port)], port, where)
    server.start()
    return server
