"""What runs beside the client listeners, in the server's loop: it opens after them, closes before.

The server knows services by this protocol only; who starts the server says which there are.
"""

from typing import Protocol

from kestrelmq.server.context import ServerContext


class Service(Protocol):
    """Something that serves as long as the server does.

    Attributes:
        name: as in `NAME listening on HOST:PORT`.
    """

    name: str

    async def open(self, context: ServerContext) -> tuple[str, int] | None:
        """Begin; return the address and port it listens on, None when it is turned off.

        Raises:
            OSError: the address cannot be used.
        """

    async def close(self) -> None:
        """End what runs, and give the port back; may be called when `open` failed."""
