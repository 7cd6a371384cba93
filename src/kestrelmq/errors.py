"""The exceptions: the class says who is at fault, and whether the operation may have happened."""


class KestrelError(Exception):
    """The base of every error that kestrelmq raises on purpose."""


class ConfigError(KestrelError, ValueError):
    """A configuration that cannot be used.

    The message has one line for each problem: file, key, what was found and what is allowed.
    """


class InvalidDeclaration(ConfigError):  # noqa: N818 # says what it is
    """Settings that a client may not declare for a queue."""


class JournalError(KestrelError):
    """A journal that could not be read or written; nothing that was acknowledged is lost."""


class NotSynced(JournalError):  # noqa: N818 # says what it is
    """A change that was made and written, but that a crash of the machine may undo."""


class DamagedJournal(JournalError):  # noqa: N818 # says what it is
    """Bytes in a journal that are not a record.

    Attributes:
        position: where they are, in bytes from the start of the file or buffer.
        reason: what is wrong with them.
        file: the file's path, when it is known.
    """

    def __init__(self, position: int, reason: str, file: str | None = None) -> None:
        super().__init__(position, reason, file)
        self.position = position
        self.reason = reason
        self.file = file

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        return f"{where}damaged at byte {self.position}: {self.reason}"


class QueuePathLocked(JournalError):  # noqa: N818
    """A server, a tool or the library uses the queue path, or the queue."""


class StorageError(KestrelError):
    """A store (S3, HDFS and the like) that cannot be reached, or that refuses what was asked."""


class QueueUnavailable(KestrelError):  # noqa: N818
    """The queue cannot be used: it was closed, is damaged, or its items cannot be read."""


class ReadersChanged(QueueUnavailable):
    """Who may read the queue has changed while a reader waited for an item."""


class ReservedMemoryFull(QueueUnavailable):
    """The reserved items of the queue take all the memory they may, so no more are reserved."""


class TagRefused(KestrelError, ValueError):  # noqa: N818
    """A tag or an epoch of a reserved read that cannot be used; nothing was changed."""


class NoDeadLetterQueue(KestrelError, ValueError):  # noqa: N818
    """Reads cannot be released as dead letters: their queue has none; nothing was changed."""


class PatternRefused(KestrelError):  # noqa: N818
    """A search for a regular expression that is not valid, or takes too long."""


class PlaceRefused(KestrelError):  # noqa: N818
    """A text that is not a place in a queue, or no longer: the queue was loaded or made anew."""


class InvalidQueueName(KestrelError, ValueError):  # noqa: N818
    """A name that is not allowed for a queue."""


# --- Client ---------------------------------------------------------------------------------------
# What a client's caller sees. The class says what may have happened on the server.


class ClientError(KestrelError):
    """The base of every error of a client's operation.

    Attributes:
        stored: after `put_many`, what became of each item: True stored, False not stored (refused,
            or never sent), None unknown. Empty after any other operation.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.stored: tuple[bool | None, ...] = ()


class InvalidRequest(ClientError, ValueError):  # noqa: N818
    """Arguments that cannot be sent, such as a bad queue name; nothing was sent."""


class ImportStopped(ClientError):  # noqa: N818
    """An import ended early: a line is wrong, or an item was refused; those before it are added.

    Attributes:
        added: how many items were added.
    """

    def __init__(self, message: str, added: int) -> None:
        super().__init__(message)
        self.args = (message, added)  # from which another process makes it anew
        self.added = added

    def __str__(self) -> str:
        return f"{self.args[0]}; {self.added} items added"


class ClientClosed(ClientError):  # noqa: N818
    """The client was closed; the operation did not happen, or was waiting and ended."""


class ServerUnavailable(ClientError):  # noqa: N818
    """No server could be reached, or none is known; the operation did not happen."""


class ConnectionLost(ClientError):  # noqa: N818
    """The connection broke before the whole reply came; the operation may have happened."""


class OperationTimeout(ClientError):  # noqa: N818
    """The reply did not come in time; the operation may have happened, or may still happen."""


class LeaseEnded(ClientError):  # noqa: N818
    """The lease of a reserved item ended before the item was confirmed; it is delivered again."""


class ServerRefused(ClientError):  # noqa: N818
    """A server answered with an error; the operation did not happen.

    Attributes:
        kind: `SERVER_ERROR` (another server may accept), `CLIENT_ERROR` or `ERROR` (none will).
    """

    def __init__(self, message: str, kind: str = "SERVER_ERROR") -> None:
        super().__init__(message)
        self.kind = kind


class AuthenticationFailed(ServerRefused):
    """The user or the password is wrong, or the server needs one; no other server is tried."""

    def __init__(self, message: str, kind: str = "CLIENT_ERROR") -> None:
        super().__init__(message, kind)


class ProtocolError(ClientError):
    """A server sent something that is not a reply; the operation may have happened."""
