"""Jobs of every kind on a database of the test's own, and the roles beside them."""

from collections.abc import Iterator

import pytest
from tests.rights.given import Roles
from tests.rights.life import Life

from holdfast.testing import Kit


@pytest.fixture
def life(dsn: str) -> Iterator[Life]:
    life = Life()
    Kit(life.app, dsn, life.settings).database.close()  # makes the queues
    yield life
    life.close()


@pytest.fixture
def roles(dsn: str, life: Life) -> Iterator[Roles]:
    roles = Roles(dsn, "limited")
    yield roles
    roles.clear()
