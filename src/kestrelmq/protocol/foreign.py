"""Recognising clients of other protocols: HTTP, and memcached's binary protocol.

A web page can make any browser that opens it send an HTTP request, with a body of the page's
choice, to any port that the browser can reach. The first two lines of such a request come before
the body and identify it. A session that sees one of them closes the connection, so no line of the
body is read as a command.
"""

import struct
from typing import Final

BINARY_REQUEST: Final = b"\x80"
"""The first byte of every binary request; no text command begins with it."""

_BINARY_HEADER: Final = struct.Struct(">BBHBBHI4sQ")
_BINARY_RESPONSE: Final = 0x81
_UNKNOWN_COMMAND: Final = 0x0081
_REFUSAL: Final = b"this server speaks memcached's text protocol only"


def is_http(line: bytes) -> bool:
    """Whether a line is the first line of an HTTP request, or the header after it.

    Call it only for lines that are not valid commands: a valid `get` may look like HTTP.
    """
    words = line.split()
    is_request = len(words) >= 3 and words[-1][:5].upper() == b"HTTP/"
    return is_request or line[:5].lower() == b"host:"


def binary_refusal(request: bytes) -> bytes:
    """Return the binary protocol's error reply to `request`, which may be incomplete."""
    header = request[: _BINARY_HEADER.size].ljust(_BINARY_HEADER.size, b"\0")
    _, opcode, _, _, _, _, _, opaque, _ = _BINARY_HEADER.unpack(header)
    response = _BINARY_HEADER.pack(
        _BINARY_RESPONSE, opcode, 0, 0, 0, _UNKNOWN_COMMAND, len(_REFUSAL), opaque, 0
    )
    return response + _REFUSAL
