"""Which connections are closed because their clients are silent."""

from pathlib import Path

import pytest

from kestrelmq.server.silence import SilenceWatch
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled


def test_silence_begins_after_a_wait(tmp_path: Path) -> None:
    """A client that waited through a look is given all of the time until the one after next."""
    with Turning(tmp_path) as server:
        client, other = server.connect("memcache"), server.connect("text")

        def silent(watch: SilenceWatch) -> list[str]:
            return [found.protocol for found in watch.look(server.connections.values())]

        async def scenario() -> None:
            watch = SilenceWatch()
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
