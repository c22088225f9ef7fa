"""Rotation of secrets: which of them sign a request at which time, as the worker sends it."""

import pytest
from tests.webhooks.support import Request, Site, hooks_of

from holdfast import ConfigurationError, Holdfast, Webhooks
from holdfast.model import signing
from holdfast.testing import Kit

HOUR = 3600.0
ACME = {"tenant": "acme"}


@pytest.fixture
def hooks(app: Holdfast, kit: Kit, site: Site) -> Webhooks:
    made = hooks_of(app, site)
    kit.create_queues()
    kit.run_worker()  # from here on the log is read
    return made


def sent(app: Holdfast, kit: Kit, site: Site) -> Request:
    app.publish("order.paid", {"n": 1}, headers=ACME)
    before = len(site.requests)
    kit.run_worker()
    (request,) = site.requests[before:]
    return request


def by(request: Request, *secrets: str) -> bool:
    """The request has the signatures of these secrets, in this order, and no others."""
    headers = request.headers
    at = int(headers["webhook-timestamp"])
    return headers["webhook-signature"] == signing.signature_header(
        list(secrets), headers["webhook-id"], at, request.body
    )


def test_the_old_secret_signs_up_to_its_expiry_and_no_longer(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    assert made.secret is not None
    old = made.secret.value
    assert by(sent(app, kit, site), old)
    new = hooks.endpoints.rotate(made.id, tenant="acme", overlap="1h").value
    assert by(sent(app, kit, site), new, old)
    kit.clock.advance(HOUR / 2)
    assert by(sent(app, kit, site), new, old)
    kit.clock.advance(HOUR / 2)
    assert by(sent(app, kit, site), new)


def test_a_later_rotation_does_not_lengthen_an_earlier_one(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    second = hooks.endpoints.rotate(made.id, tenant="acme", overlap="1h").value
    third = hooks.endpoints.rotate(made.id, tenant="acme", overlap="24h").value
    kit.clock.advance(HOUR)
    assert by(sent(app, kit, site), third, second)


def test_the_newest_signs_first_and_five_at_most(
    app: Holdfast, kit: Kit, site: Site, hooks: Webhooks
) -> None:
    made = hooks.endpoints.create(tenant="acme", url=site.url())
    assert made.secret is not None
    secrets = [made.secret.value]
    for _ in range(4):
        secrets.insert(0, hooks.endpoints.rotate(made.id, tenant="acme", overlap="1h").value)
    assert by(sent(app, kit, site), *secrets)
    with pytest.raises(ConfigurationError, match="has 5 secrets in use"):
        hooks.endpoints.rotate(made.id, tenant="acme", overlap="1h")
    # One that leaked signs nothing more, and neither do those before it.
    secrets = [hooks.endpoints.rotate(made.id, tenant="acme", overlap=0).value]
    assert by(sent(app, kit, site), *secrets)
