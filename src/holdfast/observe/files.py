"""The Grafana dashboard, the alert rules and the KEDA object that come with the package."""

import re
from importlib.resources import files
from string import Template

from ..errors import ConfigurationError
from ..tasks.checks import queue_name

_DEPLOYMENT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def dashboard() -> str:
    """JSON, to import in Grafana; it asks for the Prometheus data source."""
    return _read("grafana/holdfast.json")


def alert_rules() -> str:
    """A rule file for Prometheus."""
    return _read("alerts/holdfast.yml")


def scaled_object(queue: str, deployment: str, per_worker: int, most: int) -> str:
    """A ScaledObject for KEDA: one worker per that many jobs that are due or running."""
    queue_name(queue, ConfigurationError)
    if not _DEPLOYMENT.fullmatch(deployment):
        raise ConfigurationError(
            f"{deployment!r} cannot be the name of a Deployment. Use small letters, digits and -"
        )
    return Template(_read("keda/scaledobject.yml")).substitute(
        queue=queue,
        name=queue.replace("_", "-").rstrip("-"),
        deployment=deployment,
        per_worker=per_worker,
        most=most,
        cap=per_worker * most,
    )


def _read(name: str) -> str:
    return files("holdfast.observe").joinpath(name).read_text(encoding="utf-8")
