"""TLS of the load generator, which trusts every certificate."""

from __future__ import annotations

import select
import ssl


class TlsSocket(ssl.SSLSocket):
    """A socket whose methods do without blocking what the load generator expects of a plain one."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what has come; wait for the rest of a record whose beginning has."""
        parts: list[bytes] = []
        while True:
            try:
                part = super().recv(buflen, flags)
            except ssl.SSLWantReadError:
                if parts:
                    break
                waiting = select.poll()
                waiting.register(self, select.POLLIN)
                waiting.poll()
                continue
            parts.append(part)
            if not part or not self.pending():
                break
        return b"".join(parts)

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:  # type: ignore[override]
        """Send `data`, or its beginning; return how many bytes, 0 if there is no room."""
        try:
            return super().send(data, flags)
        except ssl.SSLWantWriteError:
            return 0


def trusting_context() -> ssl.SSLContext:
    """Return what a client needs to speak TLS with any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = TlsSocket
    return context
