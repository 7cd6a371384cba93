"""Certificates for tests: an authority that signs others, all made when they are needed."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    """An authority; its own certificate is in the file `certificate`."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key).add_extension(usage, critical=True)
        self.certificate = directory / f"{name.replace(' ', '-')}.pem"
        self.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *, names: tuple[str, ...] = (), days: int = 1) -> Certificate:
        """Issue a certificate for `name`; `names` are the DNS names and addresses in it."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name) if name else x509.Name([]), key, days)
        if names:
            alternatives = x509.SubjectAlternativeName([_general(one) for one in names])
            builder = builder.add_extension(alternatives, critical=False)
        number = len(list(self._directory.iterdir()))
        found = Certificate(self._directory / f"{number}.pem", self._directory / f"{number}.key")
        found.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return found

    def server(self) -> Certificate:
        """Issue a certificate for a server on this machine."""
        return self.issue("localhost", names=("localhost", "127.0.0.1"))

    def client_context(self, shown: Certificate | None = None) -> ssl.SSLContext:
        """Return what a client needs that trusts this authority, and shows a certificate or not."""
        context = ssl.create_default_context(cafile=self.certificate)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(made: x509.Certificate) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)
