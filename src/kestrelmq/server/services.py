"""Services that run in the server's loop beside the client listeners, such as the admin service.

They open after the listeners and close before them. The server knows them only by this protocol;
the command that starts the server passes them in.
"""

from typing import Protocol

from kestrelmq.server.context import ServerContext


class Service(Protocol):
    """A service that runs as long as the server.

    Attributes:
        name: its name in `NAME listening on HOST:PORT`.
    """

    name: str

    async def open(self, context: ServerContext) -> tuple[str, int] | None:
        """Open; return the address and port it listens on, or None when it is turned off.

        Raises:
            OSError: the address cannot be used.
        """

    async def close(self) -> None:
        """Stop, and release the port; may be called when `open` failed."""
