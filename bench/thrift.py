"""Sets and gets over the three protocols: the cost of thrift and text compared with memcache.

It runs the load of `bench.flood` on one listener at a time. A text get opens a read and confirms
the one before it; in the other protocols a get removes the item at once.
"""

from __future__ import annotations

import sys

from bench import servers
from bench.flood import flood_options, run_shapes
from bench.load.workload import Protocol
from bench.report.session import Session


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if a protocol could not be measured."""
    options = flood_options("thrift", __doc__, arguments)
    protocols = (Protocol.MEMCACHE, Protocol.TEXT, Protocol.THRIFT)
    session = Session("thrift", options, [servers.ours(protocol) for protocol in protocols])
    return run_shapes(session, "kestrelmq")


if __name__ == "__main__":
    sys.exit(main())
