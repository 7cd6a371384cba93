"""A write of journals in a process of its own, which stands still when it has written some rows.

python -m tests.spark.write_session ROOT SPOOL
"""

import sys
import time
from pathlib import Path
from typing import Final

from pyspark.sql import functions as f

from kestrelmq.spark.session import local_session

ROWS: Final = 50_000
"""More than fit the buffers of Spark and of a part, so that some are on disk."""


def main(root: Path, spool: str) -> None:
    """Write, and stop at the last row."""

    def stopping(number: int) -> str:
        if number == ROWS - 1:
            (root / "reached").touch()
            while True:
                time.sleep(60)
        return str(number)

    with local_session("local[1]", quick=True) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        rows = spark.range(0, ROWS, 1, 1).select(
            f.lit("q").alias("queue"),
            f.udf(stopping, "string", useArrow=False)("id").alias("data"),
        )
        rows.write.format("kestrel.journal").mode("append").save(spool)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
