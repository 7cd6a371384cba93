"""Services that run in the server's loop beside the client listeners, such as the admin service.

They open after the listeners and close before them. The server knows them only by this protocol;
the command that starts the server passes them in.
"""

from collections.abc import Sequence
from typing import Protocol

from kestrelmq.server.context import ServerContext
from kestrelmq.server.sockets import Endpoint


class Service(Protocol):
    """A service that runs as long as the server.

    Attributes:
        name: its name in `NAME listening on ENDPOINT`.
    """

    name: str

    async def open(self, context: ServerContext) -> Sequence[Endpoint]:
        """Open; return where it listens, which is nowhere when it is turned off.

        Raises:
            CannotListen: an endpoint cannot be used.
        """

    async def close(self) -> None:
        """Stop, and release the port; may be called when `open` failed."""
