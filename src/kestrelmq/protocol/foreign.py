"""Recognising other protocols: clients of HTTP, TLS and memcached's binary one, and servers.

A web page can make any browser that opens it send an HTTP request, with a body of the page's
choice, to any port that the browser can reach. The first two lines of such a request come before
the body and identify it. A session that sees one of them closes the connection, so no line of the
body is read as a command. Likewise a page can choose what is in a TLS hello, but not its first
byte; and whatever else speaks first is no command.
"""

import struct
from typing import Final

BINARY_REQUEST: Final = b"\x80"
"""The first byte of every binary request; no text command begins with it."""

TLS_HELLO: Final = b"\x16"
"""The first byte of a TLS connection; no command begins with it."""
MEMCACHED_COMMANDS: Final = frozenset(
    b"set add replace append prepend cas get gets gat gats touch delete incr decr mg ms md ma mn me"
    b" stats version verbosity flush_all quit shutdown slabs lru lru_crawler watch cache_memlimit"
    b" refresh_certs misbehave debugtime extstore".split()
)
"""memcached's own commands: a connection may begin with each, served or not."""

_SERVERS: Final = {
    b"HTTP/": "HTTP is spoken there: is it the admin port?",
    b"\x15\x03": "TLS is spoken there",
    b"\x16\x03": "TLS is spoken there",
    b"SSH-": "SSH is spoken there",
    b"-ERR": "is it a Redis server?",
    b"-": "is it the text port?",
    b"+": "is it the text port?",
    b"*": "is it the text port?",
    b":": "is it the text port?",
}
"""What a server speaks whose reply begins so, and is none of the memcache protocol."""
NOT_MEMCACHE: Final = "is it the memcache port of a server, and does it speak TLS?"

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


def guessed_server(reply: bytes) -> str:
    """Return what kind of server may have sent `reply`, which is not a reply of ours."""
    for beginning, guess in _SERVERS.items():
        if reply.startswith(beginning):
            return guess
    return NOT_MEMCACHE


def binary_refusal(request: bytes) -> bytes:
    """Return the binary protocol's error reply to `request`, which may be incomplete."""
    header = request[: _BINARY_HEADER.size].ljust(_BINARY_HEADER.size, b"\0")
    _, opcode, _, _, _, _, _, opaque, _ = _BINARY_HEADER.unpack(header)
    response = _BINARY_HEADER.pack(
        _BINARY_RESPONSE, opcode, 0, 0, 0, _UNKNOWN_COMMAND, len(_REFUSAL), opaque, 0
    )
    return response + _REFUSAL
