"""Spark data sources for queues and journals, and pipelines that use them.

    from kestrelmq.spark import register
    register(spark)
    spark.read.format("kestrel.journal").load("/var/spool/kestrel")   # every operation
    spark.read.format("kestrel.queue").load("/var/spool/kestrel")     # what is in the queues now
    rows.write.format("kestrel.journal").mode("append").save("/var/spool/new")
    spark.readStream.format("kestrel").options(servers="a:22133", queue="q", ...).load()  # a stream

This package can be imported without Spark; `pip install kestrelmq[spark]` installs Spark.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ZONE: Final = "spark.sql.session.timeZone"


def register(spark: "SparkSession") -> None:
    """Register the data sources with a session, unless Spark has found them by itself.

    Spark tells tasks only settings that are given. So the session's time zone, in which dates are
    written, is set to what it is: by default it is that of the driver's machine.
    """
    from kestrelmq.spark.sources.journal import JournalSource  # noqa: PLC0415 # needs Spark
    from kestrelmq.spark.sources.live import KestrelSource  # noqa: PLC0415 # needs Spark
    from kestrelmq.spark.sources.queue import QueueSource  # noqa: PLC0415 # needs Spark

    session = getattr(spark, "_jsparkSession", None)  # Spark Connect has none
    found = session and session.sessionState().dataSourceManager()
    for source in (JournalSource, QueueSource, KestrelSource):
        # Spark warns of a source that is replaced, though by itself.
        if not found or not found.dataSourceExists(source.name()):
            spark.dataSource.register(source)
    zone = spark.conf.get(_ZONE)
    if zone is not None:
        spark.conf.set(_ZONE, zone)
