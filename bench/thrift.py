"""Sets and gets over our three protocols: what thrift and text cost beside memcache.

One listener at a time, the same flood as `bench.flood`. A text get opens a read and confirms the
one before it; the others remove at once.
"""

from __future__ import annotations

import sys

from bench import servers
from bench.flood import flood_options, run_shapes
from bench.load.workload import Protocol
from bench.report.session import Session


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1 when a protocol could not be measured."""
    options = flood_options("thrift", __doc__, arguments)
    protocols = (Protocol.MEMCACHE, Protocol.TEXT, Protocol.THRIFT)
    session = Session("thrift", options, [servers.ours(protocol) for protocol in protocols])
    return run_shapes(session, "kestrelmq")


if __name__ == "__main__":
    sys.exit(main())
