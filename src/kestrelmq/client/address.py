"""Server addresses: `host:port`, `[IPv6]:port`, or a host alone for the default port."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kestrelmq.errors import InvalidRequest

DEFAULT_PORT: Final = 22133


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """The address of one server's memcache listener."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Parse a server address; `default_port` is used if `text` has no port.

    Raises:
        InvalidRequest: `text` is not a server address.
    """
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest else str(default_port)
        usable = bool(bracket) and (not rest or rest.startswith(":"))
    elif text.count(":") > 1:
        # A bare IPv6 address: every colon is part of it.
        host, port, usable = text, str(default_port), True
    else:
        host, colon, port = text.partition(":")
        port, usable = (port, True) if colon else (str(default_port), True)
    if not usable or not host or any(c.isspace() for c in host) or not _is_port(port):
        raise InvalidRequest(f"{text!r} is not a server address like 'localhost:{default_port}'")
    return Address(host, int(port))


def parse_addresses(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Parse server addresses, given as one comma-separated text or as several texts.

    Duplicates are dropped.

    Raises:
        InvalidRequest: one of them is not an address, or there is none.
    """
    texts = [servers] if isinstance(servers, str) else list(servers)
    words = [word for text in texts for word in text.split(",") if word.strip()]
    if not words:
        raise InvalidRequest("no server address was given")
    return tuple(dict.fromkeys(parse_address(word) for word in words))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536
