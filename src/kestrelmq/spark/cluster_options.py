"""Options that say where the servers are, and how to sign in. This module does not need Spark.

A password is in a file, which each process that needs it reads: it is in no option, so neither in
a plan nor in a checkpoint.
"""

from dataclasses import dataclass
from pathlib import Path

from kestrelmq.client.address import SCHEME, parse_addresses, user_of
from kestrelmq.client.cluster import FixedMembership, Membership
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.tls import tls_context, tls_of
from kestrelmq.errors import ConfigError, InvalidRequest
from kestrelmq.passwords import read_password
from kestrelmq.spark.given_options import GivenOptions, option, options_of
from kestrelmq.spark.storage.locations import a_boolean


def _servers(value: str) -> str:
    allowed = "servers such as 'localhost:22133', separated by commas"
    try:
        addresses = parse_addresses(value)
    except InvalidRequest:
        addresses = ()
    if not addresses or any("@" in one.host for one in addresses):
        if "@" in value:  # what is before it may be a password, which no error shows
            raise ConfigError(f"option 'servers': it must be {allowed}, no password")
        raise ValueError(allowed)
    return value if SCHEME in value else ",".join(map(str, addresses))


def _file(value: str) -> str:
    # Executors may have another working directory than the driver.
    return str(Path(value).absolute())


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Where the servers are: a list of addresses, or a path in ZooKeeper; and how to sign in.

    Attributes:
        servers: `host:port,...`, or URLs, which may say the user and TLS; None if ZooKeeper has the
            list.
        zookeeper: ZooKeeper's hosts.
        path_prefix: the path in ZooKeeper under which the servers are registered.
        user: as whom to sign in.
        password_file: a file whose first line is the user's password; each machine has it.
        tls: whether to speak TLS with servers that the system trusts.
        tls_ca, tls_certificate, tls_key: files for TLS, as `client.tls` has them; likewise.
    """

    servers: str | None = option("servers", _servers)
    zookeeper: str | None = option("zookeeper", str)
    path_prefix: str | None = option("pathPrefix", str)
    user: str | None = option("user", str)
    password_file: str | None = option("passwordFile", _file)
    tls: bool = option("tls", a_boolean, False)
    tls_ca: str | None = option("tlsCa", _file)
    tls_certificate: str | None = option("tlsCertificate", _file)
    tls_key: str | None = option("tlsKey", _file)

    def membership(self) -> Membership:
        """Return the membership of the cluster: fixed, or followed in ZooKeeper."""
        if self.zookeeper is None or self.path_prefix is None:
            return FixedMembership(parse_addresses(self.servers or ""))
        from kestrelmq.client.discovery import ZooKeeperMembership  # noqa: PLC0415 # kazoo is large

        return ZooKeeperMembership(self.zookeeper, self.path_prefix)

    def client_options(self) -> ClientOptions:
        """Return the options of a client of the servers; the files are read now.

        Raises:
            ConfigError: a file cannot be used, or the password or the user is missing.
        """
        servers, files = self.servers or "", (self.tls_ca, self.tls_certificate, self.tls_key)
        try:
            user = self.user or user_of(servers)
            tls = tls_context(*files) if self.tls or any(files) else tls_of(servers)
        except InvalidRequest as error:
            raise ConfigError(f"a server cannot be connected to: {error}") from None
        if (user is None) != (self.password_file is None):
            raise ConfigError("options 'user' and 'passwordFile' go together")
        if user is None or self.password_file is None:
            return ClientOptions(tls=tls or False)
        try:
            password = read_password(Path(self.password_file))
            return ClientOptions(user=user, password=password, tls=tls or False)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            shown = f"{self.password_file}: {reason}"
            raise ConfigError(f"options 'user' and 'passwordFile': {shown}") from None

    def as_options(self) -> dict[str, str]:
        """Return the options of a data source that mean the same servers."""
        given = {name: getattr(self, one) for one, (name, *_) in options_of(type(self)).items()}
        given["tls"] = "true" if self.tls else None
        return {name: value for name, value in given.items() if value is not None}


def cluster_options(options: GivenOptions) -> ClusterOptions:
    """Take the options that say where the servers are.

    Raises:
        ConfigError: they are missing, or have a value that is not allowed.
    """
    cluster = ClusterOptions(**options.of(ClusterOptions))
    if (cluster.zookeeper is None) != (cluster.path_prefix is None):
        raise ConfigError(f"options 'zookeeper' and 'pathPrefix' of {options.purpose} go together")
    if (cluster.servers is None) == (cluster.zookeeper is None):
        raise ConfigError(
            f"options of {options.purpose}: give either 'servers' (host:port,...), or 'zookeeper' "
            "and 'pathPrefix'"
        )
    return cluster
