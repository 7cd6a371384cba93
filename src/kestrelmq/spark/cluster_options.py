"""Options that say where the servers are. This module does not need Spark."""

from dataclasses import dataclass

from kestrelmq.client.address import parse_addresses
from kestrelmq.client.cluster import FixedMembership, Membership
from kestrelmq.errors import ConfigError, InvalidRequest
from kestrelmq.spark.given_options import GivenOptions


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Where the servers are: a list of addresses, or a path in ZooKeeper.

    Attributes:
        servers: `host:port,...`; None if ZooKeeper has the list.
        zookeeper: ZooKeeper's hosts.
        path_prefix: the path in ZooKeeper under which the servers are registered.
    """

    servers: str | None = None
    zookeeper: str | None = None
    path_prefix: str | None = None

    def membership(self) -> Membership:
        """Return the membership of the cluster: fixed, or followed in ZooKeeper."""
        if self.zookeeper is None or self.path_prefix is None:
            return FixedMembership(parse_addresses(self.servers or ""))
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return ZooKeeperMembership(self.zookeeper, self.path_prefix)

    def as_options(self) -> dict[str, str]:
        """Return the options of a data source that mean the same servers."""
        given = {
            "servers": self.servers,
            "zookeeper": self.zookeeper,
            "pathPrefix": self.path_prefix,
        }
        return {name: value for name, value in given.items() if value is not None}


def cluster_options(options: GivenOptions) -> ClusterOptions:
    """Take the options that say where the servers are.

    Raises:
        ConfigError: they are missing, or have a value that is not allowed.
    """
    cluster = ClusterOptions(
        options.take("servers", None, _servers),
        options.take("zookeeper", None, str),
        options.take("pathPrefix", None, str),
    )
    if (cluster.zookeeper is None) != (cluster.path_prefix is None):
        raise ConfigError(f"options 'zookeeper' and 'pathPrefix' of {options.purpose} go together")
    if (cluster.servers is None) == (cluster.zookeeper is None):
        raise ConfigError(
            f"options of {options.purpose}: give either 'servers' (host:port,...), or 'zookeeper' "
            "and 'pathPrefix'"
        )
    return cluster


def _servers(value: str) -> str:
    try:
        return ",".join(map(str, parse_addresses(value)))
    except InvalidRequest:
        raise ValueError("servers such as 'localhost:22133', separated by commas") from None
