"""Lets Spark find the data source `kestrel` by itself, by the name of this module."""

import contextlib

with contextlib.suppress(ImportError):  # an error would keep all sources of others from Spark
    from kestrelmq.spark.sources.live import KestrelSource as DefaultSource

__all__ = ["DefaultSource"]
