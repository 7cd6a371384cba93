"""Sessions on this machine."""

from pyspark.sql import SparkSession


def where_pyspark_is(_number: int) -> str:
    """Return where a process of Spark imported pyspark from."""
    import pyspark  # noqa: PLC0415 # in that process

    return str(pyspark.__file__)


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Not Spark's zipped copy, which each process would have to compile anew."""
    (found,) = spark.sparkContext.parallelize([1], 1).map(where_pyspark_is).collect()
    assert ".zip" not in found
