"""API operations on the server itself: status, configuration, reload."""

from typing import Any, Final

from kestrelmq.admin.calls import Call, operation
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.models import ConfigAnswer, NewStatus, Reloaded, ServerAnswer, StatusAnswer
from kestrelmq.config import RELOADED, ServerConfig, secret_settings
from kestrelmq.protocol.rights import Right
from kestrelmq.queues.stats import damaged_queues
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.status import ServerStatus, Status
from kestrelmq.version import BUILD, VERSION

_SECRETS: Final = secret_settings(ServerConfig)


@operation("GET", "/server", "server", Right.SIGNED_IN)
async def show_server(call: Call) -> ServerAnswer:
    """Show the server: version, statistics, status."""
    context = call.admin.context
    return ServerAnswer(
        version=VERSION,
        build=BUILD,
        stats={
            name: value if isinstance(value, int) else str(value)
            for name, value in await in_slices(context.server_stats())
        },
        status=_status(context.status),
        damaged={
            name: reason
            for name, reason in (await in_slices(damaged_queues(context.collection))).items()
            if call.sees(name)
        },
        loading=sorted(filter(call.sees, context.collection.loading)),
        token_needed=call.admin.token_needed and not context.users,
        changes_allowed=call.admin.changes_allowed or bool(context.users),
    )


@operation("GET", "/status", "server", Right.SIGNED_IN)
async def show_status(call: Call) -> StatusAnswer:
    """Show the server's status."""
    return _status(call.admin.context.status)


@operation("PUT", "/status", "server", Right.ADMIN, failures=(503,), action="status")
async def set_status(call: Call, body: NewStatus) -> StatusAnswer:
    """Change the server's status."""
    status = call.admin.context.status
    try:
        status.set(Status.parse(body.status))
    except ValueError as error:
        raise ApiError(400, "invalid_status", str(error)) from None
    return _status(status)


def _status(status: ServerStatus) -> StatusAnswer:
    return StatusAnswer(
        status=status.status.value,
        since=status.since,
        reads_allowed=status.reads_allowed,
        writes_allowed=status.writes_allowed,
    )


@operation("GET", "/config", "server", Right.ADMIN)
async def show_config(call: Call) -> ConfigAnswer:
    """Show the configuration in force; secrets are left out."""
    return ConfigAnswer(config=config_in_force(call.admin.context))


def config_in_force(context: ServerContext) -> dict[str, Any]:
    """Return the settings in force, without secrets.

    A reload puts only the settings in `RELOADED` in force; the others are as they were at the
    start.
    """
    reloaded = {name: getattr(context.collection.config, name) for name in RELOADED}
    config = context.config.model_copy(update=reloaded)
    return config.model_dump(mode="json", exclude=_SECRETS)


@operation("POST", "/reload", "server", Right.ADMIN, failures=(422,), action="reload")
async def reload(call: Call) -> Reloaded:
    """Reload the configuration file and put the settings of queues and aliases in force."""
    return Reloaded(needs_restart=await call.admin.context.reload())
