"""Serve the console's files from memory.

They are read once, at the start, and no other file can be requested. The ETag of a file is a hash
of its content, so that a browser that has the file gets 304 Not Modified.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from kestrelmq.admin.guard import marked
from kestrelmq.protocol.rights import Right

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class _ConsoleFile:
    content: bytes
    kind: str
    tag: str

    async def serve(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": self.kind, "Cache-Control": "no-cache", "ETag": self.tag}
        if request.headers.get("If-None-Match") == self.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=self.content, headers=headers)


def add_console(app: web.Application, directory: Path) -> None:
    """Read the console's files and add their routes; the console is at `/`."""
    for path in sorted(directory.iterdir()):
        kind = _TYPES.get(path.suffix)
        if kind is None:
            continue
        content = path.read_bytes()
        file = _ConsoleFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        where = "/" if path.name == "index.html" else f"/console/{path.name}"
        app.router.add_get(where, marked(file.serve, Right.ANYONE))
