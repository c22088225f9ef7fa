"""A Kafka cluster in a process of its own: the mock of librdkafka, three brokers that speak the protocol over TCP.

It keeps messages in memory and has no disk, so that killing the process would lose them: brokers are taken down and up
instead. Run as a program it takes one command per connection on its port; `Kafka` is the other end.
"""

import ctypes
import os
import socket
import sys
from pathlib import Path

from tests.brokers import Server, folder, free_port

BROKERS = (1, 2, 3)
PRODUCE = 0  # the number of the request in the protocol


class Kafka(Server):
    def ask(self, *words: str | int) -> str:
        with socket.create_connection(("127.0.0.1", self.port), 30) as link:
            link.sendall((" ".join(str(word) for word in words) + "\n").encode())
            with link.makefile() as said:
                found = said.readline().strip()
        if found.startswith("error "):
            raise AssertionError(f"{words}: {found}")
        return found

    @property
    def servers(self) -> str:
        return self.ask("servers")

    def down(self) -> None:
        self.ask("down")

    def up(self) -> None:
        self.ask("up")


def kafka_server() -> Kafka:
    where, port = folder("kafka"), free_port()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    server = Kafka([sys.executable, "-m", "tests.kafka_mock", str(port)], port, where, env)
    server.start()
    return server


class _Cluster:
    def __init__(self) -> None:
        import confluent_kafka

        (file,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
        self.lib = lib = ctypes.CDLL(str(file))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        said = ctypes.create_string_buffer(512)
        handle = lib.rd_kafka_new(0, ctypes.c_void_p(lib.rd_kafka_conf_new()), said, 512)
        if not handle:
            raise SystemExit(said.value.decode())
        self.cluster = ctypes.c_void_p(lib.rd_kafka_mock_cluster_new(ctypes.c_void_p(handle), len(BROKERS)))
        lib.rd_kafka_mock_group_initial_rebalance_delay_ms(self.cluster, 100)  # instead of seconds

    def do(self, word: str, *more: str) -> str:
        lib, cluster = self.lib, self.cluster
        if word == "servers":
            return str(lib.rd_kafka_mock_cluster_bootstraps(cluster).decode())
        codes = []
        if word == "topic":
            codes = [lib.rd_kafka_mock_topic_create(cluster, more[0].encode(), int(more[1]), 3)]
        elif word in ("down", "up"):
            codes = [getattr(lib, f"rd_kafka_mock_broker_set_{word}")(cluster, n) for n in BROKERS]
        elif word == "slow":  # milliseconds that every reply takes
            codes = [lib.rd_kafka_mock_broker_set_rtt(cluster, n, int(more[0])) for n in BROKERS]
        elif word == "fail":  # the next requests of a kind get these errors
            api, errors = int(more[0]), [int(code) for code in more[1:]]
            kinds = (ctypes.c_int * len(errors))(*errors)
            lib.rd_kafka_mock_push_request_errors_array(
                cluster, ctypes.c_int16(api), ctypes.c_size_t(len(errors)), kinds
            )
        elif word == "advertise":  # one broker behind another port
            codes = [
                lib.rd_kafka_mock_broker_set_host_port(cluster, int(more[0]), b"127.0.0.1", int(more[1]))
            ]
        else:
            return f"error no command {word}"
        return "ok" if not any(codes) else f"error {codes}"


def _serve(port: int) -> None:
    cluster = _Cluster()
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            link, _ = listening.accept()
            with link, link.makefile() as said:
                if line := said.readline().split():
                    link.sendall(f"{cluster.do(*line)}\n".encode())


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
