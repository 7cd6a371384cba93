"""The memcache protocol before a client has signed in, where there are users.

As memcached does it: the client sends a `set` whose data is `USER PASSWORD`; key, flags and expiry
are ignored. `STORED` is the answer, and a `MemcacheSession` takes over, so that this is never asked
again; or `CLIENT_ERROR authentication failure`, also for any other data. All else but `version` and
`quit` is refused, and so nothing is stored. The third refusal closes the connection: some clients
take the end of a connection for the end of the server, so not the first one does.
"""

from collections.abc import Callable
from typing import Final

from kestrelmq.access.signing_in import WrongPassword
from kestrelmq.errors import KestrelError
from kestrelmq.passwords import SIGN_IN_FIRST
from kestrelmq.protocol import memcache
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.foreign import BINARY_REQUEST, binary_refusal
from kestrelmq.protocol.managing import Delete, Flush, FlushAll, Quit, Version
from kestrelmq.protocol.memcache import STORED, Parser, RefusedRequest
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.context import MOST_SIGN_INS, NotSignedIn, ServerContext
from kestrelmq.server.requests import changes
from kestrelmq.server.sessions.large_item import SkippedItem
from kestrelmq.server.sessions.memcache_reads import error_reply
from kestrelmq.version import VERSION

_MOST_LINE: Final = 2048
_MOST_DATA: Final = 1024
_SET_WORDS: Final = 5
_REFUSAL: Final = error_reply(NotSignedIn(SIGN_IN_FIRST))
_FAILURE: Final = error_reply(WrongPassword())


class SigningInSession(Session):
    """The session of a client until it has signed in. None of its replies depends on a queue."""

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        parser: Parser,
        signed_in: Callable[[Connection], Session],
    ) -> None:
        """Prepare; `signed_in` makes the session that takes over."""
        self._connection = connection
        self._context = context
        self._parse = parser.parse_long
        self._signed_in = signed_in
        self._is_first = True
        self._refusals = 0
        self._skipped: SkippedItem | None = None
        self.bytes_needed = 0

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`; return the rest."""
        self.bytes_needed = position = 0
        connection = self._connection
        while position < len(data) and not (connection.paused or connection.closing):
            if self._skipped is not None:
                position = self._skip(self._skipped, data, position)
                continue
            end = data.find(b"\n", position) + 1
            if (end or len(data)) - position > _MOST_LINE:
                self._close_with(memcache.client_error("the line is too long"))
                break
            if not end:
                if data.startswith(BINARY_REQUEST, position):
                    self._close_with(binary_refusal(data[position:]))
                break
            after = self._serve(data, position, end)
            if not after:
                break
            position = after
        return data[position:]

    def _serve(self, data: bytes, position: int, end: int) -> int:
        """Serve the request in the line that ends at `end`; return where the next begins.

        0 if its data has not all arrived.
        """
        line = data[position:end]
        is_first, self._is_first = self._is_first, False
        try:
            if is_first:
                memcache.check_first(line)
            words = line.split()
            if words and words[0].lower() == b"set":
                return self._sign_in(words, data, position, end)
            request = self._parse(line[:-1])
        except ClientFault as fault:
            if line.startswith(BINARY_REQUEST):
                self._close_with(binary_refusal(data[position:]))
                return end
            self._refuse(memcache.client_error(fault.message))
            self._connection.closing |= fault.closes
            return end
        if isinstance(request, Quit):
            self._connection.closing = True
        elif isinstance(request, Version):
            self._connection.push(b"VERSION " + VERSION.encode() + b"\r\n")
        else:
            is_quiet = isinstance(request, Delete | Flush | FlushAll) and request.noreply
            if isinstance(request, RefusedRequest):
                is_quiet = not request.reply
                if request.size is not None:
                    self._skipped = SkippedItem(request.size, b"")
            self._refuse(b"" if is_quiet else _REFUSAL)
        return end

    def _sign_in(self, words: list[bytes], data: bytes, position: int, end: int) -> int:
        """Serve a `set`, whose line is at `position` and ends at `end`; return as `_serve`."""
        noreply = len(words) == _SET_WORDS + 1 and words[-1] == b"noreply"
        digits = words[_SET_WORDS - 1] if len(words) >= _SET_WORDS else b""
        if (len(words) != _SET_WORDS and not noreply) or not digits.isdigit() or len(digits) > 9:
            raise ClientFault("set takes a key, flags, expiry and a length", closes=True)
        size = int(digits)
        if size > _MOST_DATA:
            self._skipped = SkippedItem(size, b"")
            self._refuse(b"" if noreply else _FAILURE)
            return end
        body_end = end + size
        ending = data[body_end : body_end + 2]
        if ending in {b"", b"\r"}:
            self.bytes_needed = body_end + 1 - position
            return 0
        if ending != b"\r\n" and ending[:1] != b"\n":
            raise ClientFault("bad data chunk", closes=True)
        after = body_end + (1 if ending[:1] == b"\n" else 2)
        user, blank, password = data[end:body_end].partition(b" ")
        if not blank:
            self._refuse(b"" if noreply else _FAILURE)
            return after

        def answer(_: None) -> None:
            self._connection.become(self._signed_in(self._connection))
            self._connection.push(b"" if noreply else STORED)

        def refuse(error: KestrelError) -> None:
            self._refuse(b"" if noreply else error_reply(error))

        changes.answer_later(
            self._connection,
            self._context.sign_in(
                self._connection,
                user.decode(errors="surrogateescape"),
                password.decode(errors="surrogateescape"),
            ),
            answer,
            refuse,
        )
        return after

    def _skip(self, item: SkippedItem, data: bytes, position: int) -> int:
        position = item.take(data, position)
        if item.is_bad:
            self._close_with(memcache.client_error("bad data chunk"))
        if item.is_whole:
            self._skipped = None
        self.bytes_needed = item.missing
        return position

    def _refuse(self, reply: bytes) -> None:
        """Send a refusal, and close after some."""
        self._refusals += 1
        self._connection.push(reply)
        self._connection.closing |= self._refusals >= MOST_SIGN_INS

    def _close_with(self, reply: bytes) -> None:
        self._connection.push(reply)
        self._connection.closing = True

    def answer_internal_error(self) -> None:
        """Reply to a request that failed because of a bug, and close."""
        self._close_with(memcache.server_error("internal error"))
