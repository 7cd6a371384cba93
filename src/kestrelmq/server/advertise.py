"""The address that a server announces in ZooKeeper.

The data of a member node is the JSON of Twitter's ServerSet; its readers look keys up by name.
"""

import fcntl
import json
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kestrelmq.errors import ConfigError
from kestrelmq.server.server_actions import is_loopback

# The ioctl request for an interface's IPv4 address; the number depends on the kernel.
_SIOCGIFADDR: Final = 0xC0206921 if sys.platform == "darwin" else 0x8915
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*", ""})

# The service endpoint is the first of these listeners that is on.
ENDPOINT_NAMES: Final = ("memcache", "thrift", "text")


def member_data(listeners: Mapping[str, tuple[str, int]]) -> bytes:
    """Return the data of a member node: host and port of each of `ENDPOINT_NAMES` that is on.

    Raises:
        ConfigError: no such listener is on, so there is nothing to announce.
    """
    endpoints = {
        name: {"host": listeners[name][0], "port": listeners[name][1]}
        for name in ENDPOINT_NAMES
        if name in listeners
    }
    if not endpoints:
        raise ConfigError("[zookeeper] needs a memcache, thrift or text listener to advertise")
    return json.dumps(
        {
            "serviceEndpoint": next(iter(endpoints.values())),
            "additionalEndpoints": endpoints,
            "status": "ALIVE",
        },
        separators=(",", ":"),
    ).encode()


def interface_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine's interfaces, in the order of the interfaces."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            # struct ifreq: 16 bytes of name, then struct sockaddr_in with the address at byte 4.
            addresses.append(socket.inet_ntoa(reply[20:24]))
    return addresses


def advertised_host(
    listen_address: str, interfaces: Callable[[], Iterable[str]] = interface_addresses
) -> str:
    """Return the host at which clients on other machines reach a listener on `listen_address`.

    For a wildcard it is the first address of `interfaces` that is not a loopback address.

    Raises:
        ConfigError: `listen_address` is a loopback address, or the interfaces have no other.
    """
    if listen_address in _WILDCARDS:
        for address in interfaces():
            if not is_loopback(address):
                return address
        raise ConfigError(
            f"listen_address: {listen_address!r} is every interface, and none has an address that"
            " can be advertised in ZooKeeper; set the address that clients are to use"
        )
    if _resolves_to_loopback(listen_address):
        raise ConfigError(
            f"listen_address: found {listen_address!r}, a loopback address, which [zookeeper]"
            " cannot advertise to other machines; set the address that clients are to use, or"
            " '0.0.0.0'"
        )
    return listen_address


def _resolves_to_loopback(host: str) -> bool:
    """Whether any address of a host name is a loopback one. Raises ConfigError: it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"listen_address: found {host!r}: {error.strerror}") from None
    return any(is_loopback(str(entry[4][0])) for entry in found)
