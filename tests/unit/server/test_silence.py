"""Which connections are closed because their clients are silent."""

from pathlib import Path

import pytest

from kestrelmq.server.clients import SilenceWatch
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled


def test_a_client_is_closed_at_most_a_quarter_late(tmp_path: Path) -> None:
    """Four looks after the one that saw it first; whatever it sends begins that anew."""
    with Turning(tmp_path) as server:
        client = server.connect("memcache")

        async def scenario() -> None:
            watch = SilenceWatch(60)
            assert watch.period == 15
            found = []
            for number in range(10):
                if number == 3:
                    await server.send(client, b"version\r\n")
                    await server.receive(client, b"\r\n")
                found.append(len(watch.look(server.connections.values())))
            assert found == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]

        server.run(scenario())
        client.close()


def test_silence_begins_after_a_wait(tmp_path: Path) -> None:
    """A client that waited through a look is given all of the time from the next one on."""
    with Turning(tmp_path) as server:
        client, other = server.connect("memcache"), server.connect("text")

        def silent(watch: SilenceWatch) -> list[str]:
            looks = [watch.look(server.connections.values()) for _ in range(4)]
            return [found.protocol for found in looks[-1]]

        async def scenario() -> None:
            watch = SilenceWatch(1)
            await server.send(client, b"get work/t=60000\r\n")
            assert silent(watch) == []
            assert silent(watch) == ["text"]
            await server.send(other, b"put work:\nitem\n\n")
            await server.receive(client, b"END\r\n")
            await server.receive(other, b"+1\n")
            assert silent(watch) == []
            assert sorted(silent(watch)) == ["memcache", "text"]

        server.run(scenario())
        client.close()
        other.close()


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_does_not_read_is_silent(tmp_path: Path, *, reads: bool) -> None:
    """One that reads a little between the looks is not, however much is left."""
    item = b"x" * 1_000_000
    with Turning(tmp_path) as server:
        client = server.connect("memcache")
        connection = server.connections[client.fileno()]

        async def scenario() -> None:
            put = b"set work 0 0 %d\r\n%b\r\n" % (len(item), item)
            await server.send(client, put)
            await server.receive(client, b"STORED\r\n")
            await server.send(client, b"get work/peek\r\n" * 20)
            await server.until(lambda: connection.awaits_reading)
            watch, found = SilenceWatch(60), []
            for number in range(7):
                found.append(len(watch.look(server.connections.values())))
                unread = connection.unread
                while reads and number in {0, 3} and connection.unread == unread:
                    client.recv(1000)
            assert found == [0, 0, 0, 0, *[0 if reads else 1] * 3]

        server.run(scenario())
        client.close()
