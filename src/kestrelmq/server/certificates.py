"""The certificates of the listeners that speak TLS, which a reload reads again."""

import ssl
from pathlib import Path
from typing import Any, Final

from kestrelmq.config import ServerConfig, TlsConfig
from kestrelmq.errors import ConfigError

_NAMES: Final = ("DNS", "URI")


class Certificates:
    """What the listeners need to speak TLS."""

    __slots__ = ("_context", "_listeners")

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None
        self._listeners: tuple[str, ...] = ()

    def context(self, listener: str) -> ssl.SSLContext | None:
        """Return what a new client's TLS begins with; None for a listener that speaks none."""
        return self._context if listener in self._listeners else None

    def put_in_force(self, config: ServerConfig, context: ssl.SSLContext | None) -> None:
        """Serve new clients with the `context` that `load_context` returned for `config`."""
        self._context = context
        self._listeners = () if config.tls is None else config.tls.listeners


def certificate_name(shown: dict[str, Any] | None) -> str | None:
    """Return the name in a client's certificate: the common name, else the first DNS name or URI.

    Args:
        shown: what `getpeercert` returns; None or empty if no certificate was shown and accepted.
    """
    if not shown:
        return None
    attributes = (pair for part in shown.get("subject", ()) for pair in part)
    names = [value for kind, value in attributes if kind == "commonName"]
    names += [value for kind, value in shown.get("subjectAltName", ()) if kind in _NAMES]
    return names[0] if names else None


def load_context(config: ServerConfig) -> ssl.SSLContext | None:
    """Read the files of `[tls]`; return None if there is no such table.

    Raises:
        ConfigError: a file cannot be used; the error says which, and why not.
    """
    return None if config.tls is None else _server_context(config.tls)


def _server_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # It costs the client little and the server much.
    context.options |= ssl.OP_NO_RENEGOTIATION
    key = tls.key or tls.certificate
    _read("certificate", tls.certificate)
    _read("key", key)
    try:
        # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
        context.load_cert_chain(tls.certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tls: {tls.certificate} and {key} are not a certificate and its key, unencrypted, in"
            f" PEM: {_reason(error)}"
        ) from None
    if tls.client_ca is not None:
        _read("client_ca", tls.client_ca)
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"tls.client_ca: {tls.client_ca} has no certificate in PEM: {_reason(error)}"
            ) from None
        needed = tls.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if needed else ssl.CERT_OPTIONAL
    return context


def _read(setting: str, path: Path) -> None:
    """Raise ConfigError if a file cannot be read: OpenSSL's error does not say which it is."""
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls.{setting}: {path}: {error.strerror or error}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
