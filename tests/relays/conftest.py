"""Brokers that the tests of relays share."""

from collections.abc import Iterator

import pytest
from tests.brokers import Server, nats_server


@pytest.fixture(scope="session")
def nats_broker() -> Iterator[Server]:
    server = nats_server()
    yield server
    server.end()
