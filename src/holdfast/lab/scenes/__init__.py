"""The scenes, in the order of the story. Each is one module with an app and a SCENE."""

import importlib

from holdfast.errors import ConfigurationError
from holdfast.lab.scene import Scene

NAMES = (
    "one_receipt",
    "crash_and_dedupe",
    "stale_owner",
    "lost_notification",
    "late_commit",
    "ring",
    "deploy_wave",
    "two_housekeepers",
    "hot_key",
    "saga",
    "tuner",
    "poison_job",
    "cut_the_line",
    "old_snapshot",
)


def all_scenes() -> list[Scene]:
    return [importlib.import_module(f"holdfast.lab.scenes.{name}").SCENE for name in NAMES]


def scene_of(number: int) -> Scene:
    for scene in all_scenes():
        if scene.number == number:
            return scene
    raise ConfigurationError(f"there is no scene {number} (there are 1 to {len(NAMES)})")
