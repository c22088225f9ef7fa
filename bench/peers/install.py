"""Each peer in an environment of its own: a venv, or a folder for npm. Made once, kept while the pins are the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .table import Peer

STAMP = ".pins"
INSTALL_SECONDS = 600.0


class PeerFailed(Exception):
    """Why there is no figure of this peer."""


def clean_environment() -> dict[str, str]:
    """Ours, without what would make a child use our own packages. What the user set for pip and npm stays."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "NODE_PATH", "NODE_OPTIONS", "PGOPTIONS")
    return {name: value for name, value in os.environ.items() if name not in ours} | {
        "NODE_ENV": "production"
    }


def command(peer: Peer, folder: Path) -> list[str]:
    """Install the peer under `folder` if it is not there yet. Returns how to start its adapter."""
    if not peer.packages:
        return [sys.executable, str(peer.adapter)]
    home = folder / peer.name
    pins = "\n".join(peer.packages)
    if not _is_ready(home, pins):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        if peer.language == "python":
            _install_python(home, peer)
        else:
            _install_node(home, peer)
        (home / STAMP).write_text(pins)
    if peer.language == "python":
        return [str(home / "bin" / "python"), str(peer.adapter)]
    return [_node(home), str(_beside_packages(home, peer.adapter))]


def _is_ready(home: Path, pins: str) -> bool:
    try:
        return (home / STAMP).read_text() == pins
    except OSError:
        return False


def _install_python(home: Path, peer: Peer) -> None:
    _do([sys.executable, "-m", "venv", str(home)], home)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _do([*pip, *peer.packages], home)


def _install_node(home: Path, peer: Peer) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise PeerFailed("npm is not installed")
    (home / "package.json").write_text('{"private": true, "type": "module"}\n')
    _do([npm, "install", "--no-audit", "--no-fund", "--save-exact", *peer.packages], home)


def _node(home: Path) -> str:
    """The pinned Node if npm could install it for this machine, else the user's own. The result says which."""
    pinned = home / "node_modules" / ".bin" / "node"
    try:
        subprocess.run([pinned, "--version"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        found = shutil.which("node")
        if found is None:
            raise PeerFailed("node is not installed") from None
        return found
    return str(pinned)


def _beside_packages(home: Path, adapter: Path) -> Path:
    """Node looks for packages from where the importing file is, so the adapter has to be a copy in there."""
    for source in adapter.parent.glob("*.mjs"):
        shutil.copyfile(source, home / source.name)
    return home / adapter.name


def _do(argv: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerFailed(f"cannot be installed: {error}") from error
    if done.returncode:
        raise PeerFailed(f"cannot be installed: {last_words(done.stderr or done.stdout)}")


def last_words(text: str, most: int = 400) -> str:
    """The end of what a program said, on one line."""
    said = " / ".join(line.strip() for line in text.strip().splitlines()[-6:] if line.strip())
    return said[-most:] or "it said nothing"
