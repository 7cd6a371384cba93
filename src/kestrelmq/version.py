"""The version, in one place: the package metadata, the protocols and the command read it here."""

from typing import Final

VERSION: Final = "0.1.0"
