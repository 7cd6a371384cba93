"""Passwords: their scrypt hashes as one line of text, and the check of a password.

The text is `scrypt:LOG2_N:R:P:SALT:HASH`; salt and hash are base64. The default takes about 30 ms
and 16 MiB for each check.
"""

import base64
import hmac
import os
import re
from dataclasses import dataclass, field
from hashlib import scrypt
from typing import Final, Self

from kestrelmq.arguments import client_name_error

LOG_N: Final = 14
"""The cost of a new hash, as a power of two."""
_R: Final = 8
_P: Final = 1
_SIZE: Final = 32
_SALT_SIZE: Final = 16
_MOST_LOG_N: Final = 18
_MOST_R: Final = 16
_MOST_P: Final = 4
_SCHEME: Final = "scrypt"
_HASH: Final = re.compile(
    r"scrypt:(\d{1,2}):(\d{1,2}):(\d{1,2}):([A-Za-z0-9+/]{22})==:([A-Za-z0-9+/]{43})="
)
"""A hash: of a salt of 16 bytes, and with 32."""
SIGN_IN_FIRST: Final = "sign in first"
"""What a server answers to a client that has not signed in."""
WRONG_PASSWORD: Final = "authentication failure"  # noqa: S105 # what is answered
"""What a server answers to a wrong name or password."""
TOO_MANY: Final = "too many "
"""What a server's answer begins with if it did not look at the password."""
_MOST_FILE: Final = 4096
"""Bytes of a password file that are looked at."""
MAX_PASSWORD: Final = 512
"""The longest password, in bytes."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The scrypt hash of a password, with its parameters."""

    log_n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str, log_n: int = LOG_N) -> Self:
        """Return the hash of a password, with a new salt."""
        salt = os.urandom(_SALT_SIZE)
        return cls(log_n, _R, _P, salt, _scrypt(password, salt, log_n, _R, _P, _SIZE))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the hash in `text`. Raises ValueError, which does not show it."""
        found = _HASH.fullmatch(text)
        if found is not None:
            log_n, r, p = map(int, found.group(1, 2, 3))
            salt, digest = (base64.b64decode(part + "==") for part in found.group(4, 5))
            if 0 < log_n <= _MOST_LOG_N and 0 < r <= _MOST_R and 0 < p <= _MOST_P:
                return cls(log_n, r, p, salt, digest)
        raise ValueError("allowed: a hash that `kestrelmq user hash` prints")

    @staticmethod
    def is_hash(text: str) -> bool:
        """Whether `text` is meant to be a hash, and not a password."""
        return text.startswith(f"{_SCHEME}:")

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"{_SCHEME}:{self.log_n}:{self.r}:{self.p}:{salt}:{digest}"

    def fits(self, password: str) -> bool:
        """Whether this is the hash of `password`; takes long, and lets other threads run."""
        found = _scrypt(password, self.salt, self.log_n, self.r, self.p, len(self.digest))
        return hmac.compare_digest(found, self.digest)


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int, size: int) -> bytes:
    most = 128 * r * ((1 << log_n) + p + 2) + (1 << 20)
    encoded = password.encode(errors="surrogateescape")
    return scrypt(encoded, salt=salt, n=1 << log_n, r=r, p=p, maxmem=most, dklen=size)


def user_name_error(name: str) -> str | None:
    """Return why no user can have this name; None if one can.

    A colon would end it in an HTTP header, and a blank in the memcache and text protocols.
    """
    if ":" in name:
        return "a user's name has no colon"
    problem = client_name_error(name)
    return None if problem is None else problem.replace("client", "user")


def password_error(password: str) -> str | None:
    """Return why this cannot be a password; None if it can. A protocol is to carry it in a line."""
    if not 0 < len(password.encode(errors="surrogateescape")) <= MAX_PASSWORD:
        return f"a password has 1 to {MAX_PASSWORD} bytes"
    if any(one.isspace() or one < " " for one in password):
        return "a password has no blanks and no control characters"
    return None


def read_password(path: "os.PathLike[str]") -> str:
    """Return the first line of a file: a password, or its hash.

    Raises:
        OSError: it cannot be read.
        ValueError: it has none; the message does not show what it has.
    """
    with open(path, "rb") as file:  # noqa: PTH123 # a path-like
        line = file.read(_MOST_FILE).split(b"\n", 1)[0]
    password = line.decode(errors="surrogateescape").removesuffix("\r")
    problem = password_error(password)
    if problem is not None:
        raise ValueError(f"its first line is not a password: {problem}")
    return password
