"""API operations on the session of a browser: who is signed in, signing in and out."""

from aiohttp import web

from kestrelmq.access.users import NOBODY
from kestrelmq.admin.calls import Call, operation
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.guard import address_of
from kestrelmq.admin.models import NewSession, SessionAnswer, SessionQuery
from kestrelmq.protocol.rights import Right


@operation("GET", "/session", "session", Right.ANYONE)
async def show_session(call: Call, query: SessionQuery) -> SessionAnswer:
    """Show who sends this request, and what that user may do."""
    user, context, queue = call.user, call.admin.context, query.queue
    if user is None:
        can_read = can_write = True
    elif queue is None:
        can_read, can_write = (user.is_admin or bool(some) for some in (user.read, user.write))
    else:
        can_read, can_write = (context.may(user, queue, write=write) for write in (False, True))
    return SessionAnswer(
        has_users=bool(context.users),
        user=None if user is None or user is NOBODY else user.name,
        admin=user is None or user.is_admin,
        can_read=can_read,
        can_write=can_write,
    )


@operation(
    "POST",
    "/session",
    "session",
    Right.ANYONE,
    failures=(409, 429),
    statuses=(204,),
    is_traffic=True,
)
async def sign_in(call: Call, body: NewSession) -> web.Response:
    """Sign in, with a cookie that goes with the browser's later requests."""
    context = call.admin.context
    if not context.users:
        raise ApiError(409, "no_users", "there are no users to sign in as")
    user = await context.user_of(body.user, body.password, "http", address_of(call.request))
    response = web.Response(status=204)
    call.admin.sessions.begin(user, response, over_tls=call.request.secure)
    return response


@operation("DELETE", "/session", "session", Right.ANYONE, statuses=(204,), is_traffic=True)
async def sign_out(call: Call) -> web.Response:
    """End the session of this browser."""
    response = web.Response(status=204)
    call.admin.sessions.end(call.request, response)
    return response
