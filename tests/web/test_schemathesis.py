"""Whoever reads the description of the API can rely on it: schemathesis makes requests of it, good and bad, and compares."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from tests.conftest import QUICK
from tests.web.test_access import TOKEN
from tests.web.troubled import make_trouble, served, shop_app

from holdfast.testing import Kit
from holdfast.web import BearerTokens, Identity, hashed, holdfast_web

# Our refusals say in words why a value of the right form means nothing; a form cannot say that.
SAID = {"Authorization": f"Bearer {TOKEN}"}
LEFT_OUT = ("positive_data_acceptance",)


@pytest.fixture
def url(holdfast_kit: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for limit in ("EACH", "ALL"):
        monkeypatch.setattr(f"holdfast.web.attempts.{limit}", 1_000_000)  # it brings wrong tokens on purpose
    kit: Kit = holdfast_kit(shop_app(), QUICK)
    make_trouble(kit)
    tokens = {hashed(TOKEN): Identity("ci", "admin")}
    with served(holdfast_web(kit.app, authorize=BearerTokens(tokens))) as url:
        yield url


@pytest.mark.parametrize(
    ("mode", "examples"),
    [
        (GenerationMode.POSITIVE, 2),
        pytest.param(GenerationMode.POSITIVE, 15, marks=pytest.mark.long),
        pytest.param(GenerationMode.NEGATIVE, 15, marks=pytest.mark.long),
    ],
)
def test_the_running_server_is_as_it_is_described(url: str, mode: GenerationMode, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", headers=SAID)
    found: list[Any] = list(schema.get_all_operations())
    operations = [one.ok() for one in found]
    assert len(operations) > 60
    wrong = [f"{one.label}: {said}" for one in operations if (said := _wrong(one, mode, examples))]
    assert not wrong, "\n\n".join(wrong)


def _wrong(operation: Any, mode: GenerationMode, examples: int) -> str:
    """What differs from the description; empty: nothing."""
    load_all_checks()
    checks = [check for check in CHECKS.get_all() if check.__name__ not in LEFT_OUT]
    assert len(checks) > 5

    @seed(1)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode, headers=SAID))
    def ask(case: Any) -> None:
        case.call_and_validate(checks=checks)

    try:
        ask()
    except Unsatisfiable:  # nothing can be wrong with what takes nothing
        return ""
    except (Exception, BaseExceptionGroup) as error:  # they are told all at once
        return str(error)[:900]
    return ""
