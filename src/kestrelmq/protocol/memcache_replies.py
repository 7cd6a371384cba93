"""The replies of the memcache protocol, as bytes."""

from functools import lru_cache
from typing import Final

_REMEMBERED: Final = 4096

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
END: Final = b"END\r\n"
ERROR: Final = b"ERROR\r\n"
DELETED: Final = b"DELETED\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
OK: Final = b"OK\r\n"
FLUSHED_ALL: Final = b"Flushed all queues.\r\n"
RELOADED: Final = b"Reloaded config.\r\n"


@lru_cache(_REMEMBERED)
def value_header(prefix: bytes, size: int) -> bytes:
    """Return a VALUE line; `prefix` is the line up to the length."""
    return b"%b%d\r\n" % (prefix, size)


def value(echo: bytes, data: bytes, cas: int | None = None) -> bytes:
    """Return a VALUE line and its data, without END."""
    extra = b"" if cas is None else b" %d" % cas
    return b"VALUE %b 0 %d%b\r\n%b\r\n" % (echo, len(data), extra, data)


def client_error(reason: str) -> bytes:
    """Return the reply that says the client is at fault."""
    return b"CLIENT_ERROR " + _one_line(reason) + b"\r\n"


def server_error(reason: str) -> bytes:
    """Return the reply that says the server is at fault, or does not allow it now."""
    return b"SERVER_ERROR " + _one_line(reason) + b"\r\n"


def stats(pairs: list[tuple[str, object]], prefix: str = "") -> bytes:
    """Return STAT lines, without END; `prefix` comes before each name."""
    return "".join(f"STAT {prefix}{name} {content}\r\n" for name, content in pairs).encode()


def dump(queue: str, pairs: list[tuple[str, object]]) -> bytes:
    """Return what a dump has of one queue, without END."""
    lines = "".join(f"  {name}={content}\r\n" for name, content in pairs)
    return f"queue '{queue}' {{\r\n{lines}}}\r\n".encode()


def line(text: str) -> bytes:
    """Return a reply of one line."""
    return _one_line(text) + b"\r\n"


def _one_line(text: str) -> bytes:
    return " ".join(text.split()).encode(errors="replace")
