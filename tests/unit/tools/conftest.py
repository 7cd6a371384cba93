"""What the tests of tools share."""

from tests.crash.conftest import root

__all__ = ["root"]
