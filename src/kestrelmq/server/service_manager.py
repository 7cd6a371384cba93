"""Tells the service manager (systemd) that the server is ready, is alive, or is stopping.

The protocol is that of sd_notify(3): a datagram of `NAME=VALUE` lines to the socket that
`NOTIFY_SOCKET` names. `WATCHDOG_USEC` says how often the manager wants to hear that the server is
alive. Without these variables nothing is sent.
"""

import asyncio
import logging
import os
import socket
from typing import Final

log = logging.getLogger(__name__)

_PER_PERIOD: Final = 3
"""Signs of life in each period of the watchdog."""


class ServiceManager:
    """The service manager that started this process, if one did.

    It takes its variables out of the environment, so that no child process speaks for this one.
    """

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")
        # A name that begins with "@" is in Linux's abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        period = os.environ.pop("WATCHDOG_USEC", "")
        watched = os.environ.pop("WATCHDOG_PID", str(os.getpid()))
        is_watched = period.isdecimal() and watched == str(os.getpid())
        self._watchdog_period = int(period) / 1e6 if is_watched else 0.0

    def ready(self) -> None:
        """Say that clients are served from now on."""
        self._send(b"READY=1")

    def stopping(self) -> None:
        """Say that the server is shutting down, which may take a while."""
        self._send(b"STOPPING=1")

    @property
    def is_watching(self) -> bool:
        """Whether the manager restarts the process when it hears nothing from it."""
        return bool(self._address and self._watchdog_period)

    async def show_life(self) -> None:
        """Show that the event loop turns, for ever."""
        while True:
            self._send(b"WATCHDOG=1")
            await asyncio.sleep(self._watchdog_period / _PER_PERIOD)

    def _send(self, message: bytes) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
                sending.sendto(message, self._address)
        except OSError as error:
            log.warning("the service manager cannot be told %s: %s", message.decode(), error)
