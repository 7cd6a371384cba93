"""Spark's daemon of Python processes, which imports what our sources need before it forks.

Spark runs several Python processes for each query: they make the source, push filters down, plan,
read or write, and commit. Its own daemon forks each of them before it imports anything, so each
imports PySpark, pyarrow and the source anew, which takes half a second of CPU.
`session.local_session` has Spark start this module in its place.
"""

import gc
import os
import sys
from importlib import import_module
from typing import Final

from pyspark import daemon

_NEEDED: Final = (
    "numpy.ma",
    "pyarrow.compute",
    "pyspark.sql.worker.plan_data_source_read",
    "kestrelmq.spark.sources.journal",
    "kestrelmq.spark.sources.live",
    "kestrelmq.spark.sources.queue",
)
_TASKS: Final = "pyspark.worker"
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Keeps numpy and pyarrow from starting threads: in a forked process they would not run."""


def main() -> None:
    """Import, and serve Spark until it closes our standard input."""
    for name, value in _ONE_THREAD.items():
        os.environ.setdefault(name, value)
    # Spark names the module that the processes run; without a name it is that of tasks.
    runs = sys.argv[1:] or [_TASKS]
    for module in (*_NEEDED, *runs):
        import_module(module)
    if _TASKS in runs:
        # This looks for pandas, and imports it where it is. Only tasks make arrays. At the top of
        # this module, pyarrow would be imported before the variables are set.
        import_module("pyarrow").array([])
    # The processes collect garbage after each task. They need not look at all this, nor copy it.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
