"""A minimal server for comparison: the least that a server in Python can do for a request.

    python -m bench.flood --server "python -m bench.bare {port}" --connections 1 --depth 1

It only waits, receives and sends, and it is not a queue: every `set` is answered with STORED and
replaces the only item, which every `get` returns. Each request must arrive in one piece. Its CPU
time is the part of a server's cost that is due to the machine and the interpreter. With `--look` it
polls without sleeping, so its CPU time with one connection is the time from one request to the
next.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
from typing import Final

ROOM: Final = 65_536
END: Final = b"\r\n"


class Bare:
    """Answers requests, one at a time on each connection."""

    def __init__(self, port: int) -> None:
        """Listen on `port` of the loopback interface."""
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._connections: dict[int, socket.socket] = {}
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._item = b""

    def serve(self, *, look: bool) -> None:
        """Answer requests forever; with `look`, poll without sleeping."""
        poll, connections, timeout = self._epoll.poll, self._connections, 0.0 if look else None
        while True:
            events = poll(timeout, 1024)
            if not events:
                os.sched_yield()
            for descriptor, _ in events:
                connection = connections.get(descriptor)
                if connection is None:
                    self._accept()
                    continue
                data = connection.recv(ROOM)
                if data:
                    connection.send(self._reply(data))
                else:
                    del connections[descriptor]
                    connection.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.fileno()] = connection
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _reply(self, request: bytes) -> bytes:
        if request.startswith(b"set "):
            self._item = request[request.index(END) + len(END) :]
            return b"STORED\r\n"
        if request.startswith(b"get "):
            size = len(self._item) - len(END)
            return b"VALUE %b 0 %d\r\n%bEND\r\n" % (request[4:-2], size, self._item)
        return b"VERSION 0\r\n"


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(prog="bench.bare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("port", type=int)
    parser.add_argument("--look", action="store_true", help="never sleep")
    options = parser.parse_args()
    Bare(options.port).serve(look=options.look)


if __name__ == "__main__":
    main()
