"""The headers of every reply, including replies to requests that cannot be parsed."""

from typing import Final

from aiohttp import web

from kestrelmq.version import VERSION

HEADERS: Final = {
    "Server": f"kestrelmq/{VERSION}",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to a reply; replies of the API are also never cached."""
    response.headers.update(HEADERS)
    if request.path.startswith("/api/"):
        response.headers.setdefault("Cache-Control", "no-store")
