"""API operations on the session of a browser: who is signed in, signing in and out."""

from aiohttp import web

from kestrelmq.access.users import NOBODY
from kestrelmq.admin.calls import Answer, Call
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.guard import address_of
from kestrelmq.admin.models import NewSession, SessionAnswer


async def show_session(call: Call) -> Answer:
    """Show who sends this request."""
    user = call.user
    return Answer(
        SessionAnswer(
            has_users=bool(call.admin.context.users),
            user=None if user is None or user is NOBODY else user.name,
            admin=user is None or user.is_admin,
        )
    )


async def sign_in(call: Call) -> web.StreamResponse:
    """Sign in, with a cookie that goes with the browser's later requests."""
    body, context = call.body(NewSession), call.admin.context
    if not context.users:
        raise ApiError(409, "no_users", "there are no users to sign in as")
    user = await context.user_of(body.user, body.password, "http", address_of(call.request))
    response = web.Response(status=204)
    call.admin.sessions.begin(user, response, over_tls=call.request.secure)
    return response


async def sign_out(call: Call) -> web.StreamResponse:
    """End the session of this browser."""
    response = web.Response(status=204)
    call.admin.sessions.end(call.request, response)
    return response
