"""Pipelines over journals: functions of a Spark session, a path and where the result goes."""

from kestrelmq.spark.pipelines.history import history
from kestrelmq.spark.pipelines.pack import pack
from kestrelmq.spark.pipelines.replay import replay
from kestrelmq.spark.pipelines.report import report
from kestrelmq.spark.pipelines.restore import restore
from kestrelmq.spark.pipelines.verify import verify

__all__ = ["history", "pack", "replay", "report", "restore", "verify"]
