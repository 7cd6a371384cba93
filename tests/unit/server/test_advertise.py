"""What a server advertises in ZooKeeper."""

import ipaddress
import json

import pytest

from kestrelmq.errors import ConfigError
from kestrelmq.server.advertise import advertised_host, interface_addresses, member_data

H = "q1.example.org"


def test_the_member_data_is_twitters_server_set_json() -> None:
    """All endpoints are named; memcache is the service endpoint."""
    listeners = {"text": (H, 2222), "thrift": ("192.0.2.8", 2229), "memcache": (H, 22133)}
    assert json.loads(member_data(listeners)) == {
        "serviceEndpoint": {"host": H, "port": 22133},
        "additionalEndpoints": {
            "memcache": {"host": H, "port": 22133},
            "thrift": {"host": "192.0.2.8", "port": 2229},
            "text": {"host": H, "port": 2222},
        },
        "status": "ALIVE",
    }


@pytest.mark.parametrize(
    ("ports", "service"),
    [
        ({"memcache": 1, "text": 2, "thrift": 3}, 1),
        ({"text": 2, "thrift": 3}, 3),
        ({"text": 2}, 2),
        ({"admin": 4, "text": 2}, 2),
    ],
)
def test_the_service_endpoint_is_memcache_else_thrift_else_text(
    ports: dict[str, int], service: int
) -> None:
    """A listener that is off is not advertised; the admin port never is."""
    data = json.loads(member_data({name: (H, port) for name, port in ports.items()}))
    assert data["serviceEndpoint"]["port"] == service
    assert set(data["additionalEndpoints"]) == set(ports) - {"admin"}


def test_a_server_that_listens_to_nothing_cannot_be_advertised() -> None:
    """The admin port alone serves no queue."""
    with pytest.raises(ConfigError, match="memcache, thrift or text"):
        member_data({"admin": (H, 2223)})


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_a_wildcard_is_advertised_as_the_first_address_that_is_not_loopback(wildcard: str) -> None:
    """Clients cannot connect to a wildcard, and other machines cannot connect to loopback."""
    interfaces = ["127.0.0.1", "127.1.2.3", "192.0.2.7", "198.51.100.1"]
    assert advertised_host(wildcard, lambda: interfaces) == "192.0.2.7"


def test_a_wildcard_without_another_interface_is_refused() -> None:
    """The error says which setting to change."""
    with pytest.raises(ConfigError, match=r"^listen_address: '0.0.0.0' is every interface"):
        advertised_host("0.0.0.0", lambda: ["127.0.0.1"])


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_address_is_refused(loopback: str) -> None:
    """The error says what was found and what to set instead."""
    with pytest.raises(ConfigError, match=rf"listen_address: found '{loopback}', a loopback.*set"):
        advertised_host(loopback)


def test_any_other_address_is_advertised_as_it_is() -> None:
    """The administrator knows best."""
    assert advertised_host("192.0.2.7") == "192.0.2.7"
    assert advertised_host("2001:db8::1") == "2001:db8::1"


def test_the_interfaces_of_this_machine_are_found() -> None:
    """Loopback is among them on every machine that runs tests."""
    addresses = [ipaddress.ip_address(address) for address in interface_addresses()]
    assert any(address.is_loopback for address in addresses)
