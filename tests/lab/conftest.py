"""One server and one nursery for all plays of a test run."""

from collections.abc import Iterator

import pytest

from holdfast.lab.place import LabHost, open_place


@pytest.fixture(scope="session")
def place() -> Iterator[LabHost]:
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "DATABASE_URL",
            "HOLDFAST_DATABASE_URL",
            "PGHOST",
            "PGDATABASE",
            "PGSERVICE",
            "PGHOSTADDR",
        ):
            patch.delenv(name, raising=False)
        with open_place() as made:
            yield made
