"""What a server says at its start of what is not safe about it."""

from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.server.server_actions import unsafe
from kestrelmq.server.sockets import TcpEndpoint
from tests.support.users import HASH

LOCAL: Final = "no users: every program on this machine can read, change and delete every queue"
REMOTE: Final = "no users: whoever reaches 0.0.0.0 can read, change and delete every queue"
ALL: Final = "memcache, text, thrift, admin"
NO_TLS: Final = f"no TLS ({ALL}): passwords and items cross the network readable"
USERS: Final = {"users": {"root": {"password_hash": HASH, "admin": True}}}
TLS: Final = {"tls": {"certificate": "/etc/certificate"}}
ONLY_TEXT: Final = {"tls": {"certificate": "/etc/certificate", "listeners": ["text", "admin"]}}
EVERYWHERE: Final = {"listen_address": "0.0.0.0"}
LOCAL_ADMIN: Final = {"admin_http_address": "localhost"}
NO_PORTS: Final = {f"{name}_listen_port": None for name in ("memcache", "text", "thrift")} | {
    "admin_http_port": None,
    "memcache_listen_path": Path("/run/kestrelmq"),
}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, [LOCAL]),
        (USERS, []),
        (NO_PORTS, []),
        (EVERYWHERE, [REMOTE, NO_TLS]),
        (EVERYWHERE | USERS, [NO_TLS]),
        ({"text_listen_address": "0.0.0.0"}, [REMOTE, NO_TLS.replace(ALL, "text")]),
        (EVERYWHERE | LOCAL_ADMIN | USERS, [NO_TLS.replace(ALL, "memcache, text, thrift")]),
        (EVERYWHERE | USERS | TLS, []),
        (
            EVERYWHERE | USERS | ONLY_TEXT,
            [NO_TLS.replace(ALL, "memcache, thrift")],
        ),
    ],
)
def test_missing_users_and_plain_ports_are_unsafe(
    settings: dict[str, Any], told: list[str]
) -> None:
    """Missing users, and ports without TLS that other machines reach."""
    assert list(unsafe(ServerConfig.model_validate(settings))) == told


@pytest.mark.parametrize(
    ("address", "secure", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:2223/"),
        ("0.0.0.0", True, "https://127.0.0.1:2223/"),
        ("::", False, "http://[::1]:2223/"),
        ("queue.example", True, "https://queue.example:2223/"),
    ],
)
def test_the_console_has_a_url(address: str, *, secure: bool, url: str) -> None:
    """A browser on this machine finds it there."""
    assert TcpEndpoint(address, 2223).url(secure=secure) == url
