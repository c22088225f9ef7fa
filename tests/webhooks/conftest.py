"""One server for all tests of webhooks in this process."""

from collections.abc import Iterator

import pytest
from tests.webhooks.support import Site


@pytest.fixture(scope="session")
def _site() -> Iterator[Site]:
    site = Site()
    yield site
    site.end()


@pytest.fixture
def site(_site: Site) -> Site:
    _site.reset()
    return _site
