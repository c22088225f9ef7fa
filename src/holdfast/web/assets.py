"""Files that the pages use: read once, named by what is in them, so that a browser may keep them for ever."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

_FOLDER = Path(__file__).parent / "assets"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    name: str
    digest: str
    kind: str
    whole: bytes
    packed: bytes


def _read(file: Path) -> Asset:
    whole = file.read_bytes()
    digest = hashlib.sha256(whole).hexdigest()[:16]
    return Asset(file.name, digest, _KINDS[file.suffix], whole, gzip.compress(whole, 9, mtime=0))


ASSETS: dict[str, Asset] = {}


def add_assets(folder: Path) -> None:
    ASSETS.update({file.name: _read(file) for file in sorted(folder.iterdir()) if file.suffix in _KINDS})


add_assets(_FOLDER)


def asset_path(name: str) -> str:
    return f"/assets/{ASSETS[name].digest}/{name}"


async def serve_asset(request: Request) -> Response:
    asset = ASSETS.get(request.path_params["name"])
    if asset is None or asset.digest != request.path_params["digest"]:
        return PlainTextResponse("There is no such file.", 404)
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, media_type=asset.kind, headers={**headers, "content-encoding": "gzip"})
    return Response(asset.whole, media_type=asset.kind, headers=headers)
