"""What becomes of the connections of a plan that does not come to its end."""

import pytest

from kestrelmq.client.address import Address, parse_address
from kestrelmq.client.cluster import membership_of
from kestrelmq.client.core import Pool, RunCommand, carry_out
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.plans import HeldReads, Planner

SERVER = parse_address("127.0.0.1:1")


class OpenConnection:
    """A connection that is open until it is closed, and runs nothing."""

    def __init__(self, address: Address, _: ClientOptions) -> None:
        self.address = address
        self.name = "me"
        self.is_open = True

    def is_usable(self) -> bool:
        """Whether it is open."""
        return self.is_open

    def close(self) -> None:
        """Close it."""
        self.is_open = False

    def interrupt(self) -> None:
        """Close it."""
        self.close()


@pytest.mark.parametrize("confirmed", [0, 1])
def test_reads_that_are_not_confirmed_go_back_when_that_is_interrupted(confirmed: int) -> None:
    """Also those of servers that were not asked yet; one that was confirmed is no longer held."""
    planner = Planner.of(membership_of(str(SERVER)), ClientOptions(), lambda: 0.0, None)
    pool = Pool(ClientOptions(), OpenConnection)
    connections = [OpenConnection(SERVER, ClientOptions()) for _ in range(3)]
    batch = [HeldReads(SERVER, connection, [b"x"]) for connection in connections]
    requests = carry_out(planner.confirm("q", batch), pool, batch)
    request = next(requests)
    for _ in range(confirmed):
        request = requests.send("END")
    assert isinstance(request, RunCommand)
    assert request.connection is connections[confirmed]
    with pytest.raises(KeyboardInterrupt):
        requests.send(KeyboardInterrupt())
    assert [one.is_open for one in connections] == [n < confirmed for n in range(3)]
