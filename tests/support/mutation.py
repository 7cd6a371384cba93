"""A plugin of pytest for `make mutants`: mutmut does not record which function calls which.

It does that in a context variable, which it sets and resets at each call; in tests with threads,
Python 3.11 crashes then. It uses the record only to reuse the results of an earlier run.
"""

import pytest
from mutmut.core import MutmutCallStack

_PATCH = pytest.MonkeyPatch()
_PATCH.setattr(MutmutCallStack, "set", lambda _call: None)
_PATCH.setattr(MutmutCallStack, "reset", lambda _token: None)
