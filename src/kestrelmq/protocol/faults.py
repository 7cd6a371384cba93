"""The exception that a codec raises when the client is at fault."""


class ClientFault(Exception):  # noqa: N818 # says who is at fault
    """A request that cannot be served as it was sent; the reply says why.

    Attributes:
        message: the reason, for the client; one line.
        closes: whether the end of the request is unknown, so that the connection must close.
    """

    def __init__(self, message: str, *, closes: bool) -> None:
        super().__init__(message)
        self.message = message
        self.closes = closes
