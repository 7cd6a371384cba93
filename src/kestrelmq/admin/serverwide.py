"""API operations on the server itself: status, configuration, reload."""

from typing import Any, Final

from kestrelmq.admin.calls import Answer, Call
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.models import ConfigAnswer, NewStatus, Reloaded, ServerAnswer, StatusAnswer
from kestrelmq.config import RELOADED, ServerConfig, secret_settings
from kestrelmq.queues.stats import damaged_queues
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.requests import changes
from kestrelmq.server.status import ServerStatus, Status
from kestrelmq.version import BUILD, VERSION

_SECRETS: Final = secret_settings(ServerConfig)


async def show_server(call: Call) -> Answer:
    """Show the server: version, statistics, status."""
    context = call.admin.context
    return Answer(
        ServerAnswer(
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
    )


async def show_status(call: Call) -> Answer:
    """Show the server's status."""
    return Answer(_status(call.admin.context.status))


async def set_status(call: Call) -> Answer:
    """Change the server's status."""
    status = call.admin.context.status
    try:
        status.set(Status.parse(call.body(NewStatus).status))
    except ValueError as error:
        raise ApiError(400, "invalid_status", str(error)) from None
    return Answer(_status(status))


def _status(status: ServerStatus) -> StatusAnswer:
    return StatusAnswer(
        status=status.status.value,
        since=status.since,
        reads_allowed=status.reads_allowed,
        writes_allowed=status.writes_allowed,
    )


async def show_config(call: Call) -> Answer:
    """Show the configuration in force; secrets are left out."""
    return Answer(ConfigAnswer(config=config_in_force(call.admin.context)))


def config_in_force(context: ServerContext) -> dict[str, Any]:
    """Return the settings in force, without secrets.

    A reload puts only the settings in `RELOADED` in force; the others are as they were at the
    start.
    """
    reloaded = {name: getattr(context.collection.config, name) for name in RELOADED}
    config = context.config.model_copy(update=reloaded)
    return config.model_dump(mode="json", exclude=_SECRETS)


async def reload(call: Call) -> Answer:
    """Reload the configuration file and put the settings of queues and aliases in force."""
    return Answer(Reloaded(needs_restart=await changes.reload(call.admin.context)))
