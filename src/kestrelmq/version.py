"""The version, in one place: the package metadata, the protocols and the command read it here."""

from typing import Final

# libmemcached takes a major version of 0 for a broken reply: memcping and memcstat would fail.
VERSION: Final = "1.0.0"
