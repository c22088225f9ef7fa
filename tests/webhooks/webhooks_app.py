"""The app of a worker process that a test kills. The port of the test's server is in the environment."""

import os

from holdfast import Egress, Holdfast

app = Holdfast()
hooks = app.webhooks(
    on=["order.*"],
    schedule=[0.2, 0.2],
    egress=Egress(
        allow_networks=["127.0.0.0/8"], allow_http=True, ports=[int(os.environ.get("HOOKS_PORT", "80"))]
    ),
)
