"""Lets Spark find the data source `kestrel.queue` by itself, by the name of this module."""

import contextlib

with contextlib.suppress(ImportError):  # an error would keep all sources of others from Spark
    from kestrelmq.spark.sources.queue import QueueSource as DefaultSource

__all__ = ["DefaultSource"]
