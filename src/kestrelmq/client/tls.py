"""TLS of clients: which servers they trust, and the certificate that they show."""

import ssl
from urllib.parse import parse_qsl

from kestrelmq.client.address import queries_of
from kestrelmq.errors import InvalidRequest

_FILES = frozenset({"ca", "certificate", "key"})


def tls_context(
    ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return what a client's TLS begins with.

    Args:
        ca: a file (PEM) with the authorities that sign servers' certificates; None for those that
            the system trusts.
        certificate: a file with the certificate to show; None for none.
        key: a file with its key; None if `certificate` has it.

    Raises:
        InvalidRequest: a file cannot be used; the error says which, and why not.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"authorities in {ca}: {_reason(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if key is not None and certificate is None:
        raise InvalidRequest("a key goes with a certificate")
    if certificate is not None:
        try:
            # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            names = certificate if key is None else f"{certificate} and {key}"
            raise InvalidRequest(f"certificate and key in {names}: {_reason(error)}") from None
    return context


def tls_of(servers: object) -> ssl.SSLContext | None:
    """Return the TLS that addresses ask for, which are URLs then; None if none does.

    It is `?tls=1`, or some of `ca=FILE`, `certificate=FILE` and `key=FILE` as well.

    Raises:
        InvalidRequest: they ask for different ones, or for something else.
    """
    found = set(queries_of(servers))
    if not found:
        return None
    if len(found) > 1:
        raise InvalidRequest("the addresses of one client have one kind of TLS")
    query = found.pop()
    try:
        settings = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        settings = {}
    if settings.pop("tls", "") != "1" or settings.keys() - _FILES or "" in settings.values():
        raise InvalidRequest(f"?{query} is not like ?tls=1&ca=FILE&certificate=FILE&key=FILE")
    return tls_context(**settings)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return getattr(error, "reason", None) or text or str(error)
