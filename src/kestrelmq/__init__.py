"""kestrelmq: the Kestrel message queue, rebuilt in Python."""

from kestrelmq.version import VERSION

__all__ = ["__version__"]

__version__ = VERSION
