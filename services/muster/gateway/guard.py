"""Who calls, and whether so often: what stands before every request.

On loopback nobody needs a token and whoever sends none may do everything; a browser that another site sent here is turned
away, by the names that it calls us and that it comes from. Elsewhere a request without a token is refused.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from litestar.types import ASGIApp, Receive, Scope, Send

from muster.agent.credentials import PREFIX
from muster.cluster.jobs import Job
from muster.gateway import problems
from muster.gateway.problems import Refused
from muster.gateway.tokens import Token, Tokens

if TYPE_CHECKING:
    from muster.gateway.direct import Direct

LOCAL: Final = frozenset(("localhost", "127.0.0.1", "[::1]", "::1"))
CALLER: Final = "muster.caller"
BODY_MAX: Final = {"jobs": 256 * 1024, "submissions": 8 * 1024 * 1024, "nodes": 5 * 1024 * 1024}
"""The most bytes of a request's body, by the first part of its path."""
FAILURES_A_SECOND: Final = 50
"""More requests with a wrong token are told to try again later."""


CALLERS_MAX: Final = 100_000


class Caller:
    """Whoever sent a request. Without a token everything is allowed: the guard lets such a caller in on loopback only."""

    __slots__ = ("_filled", "_left", "token")

    def __init__(self, token: Token | None) -> None:
        self.token = token
        self._left = 2.0 * token.rate if token is not None else 0.0
        self._filled = time.monotonic()

    @property
    def role(self) -> str:
        """The role, or `local`."""
        return self.token.role if self.token is not None else "local"

    @property
    def by(self) -> str:
        """How the log names whoever did something."""
        if self.token is None:
            return "local"
        return f"{self.token.name or self.token.user or self.token.role} ({self.token.id})"

    def take(self) -> bool:
        """Whether the caller may send one more request now."""
        if self.token is None or self.token.role == "agent":
            return True
        now = time.monotonic()
        self._left = min(2.0 * self.token.rate, self._left + (now - self._filled) * self.token.rate)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def require(self, *roles: str) -> None:
        """Refuse unless the caller has one of these roles.

        Raises:
            Refused: 403.
        """
        if self.token is not None and self.token.role not in roles:
            raise Refused(403, f"a token with the role {self.token.role} may not do this; it takes {' or '.join(roles)}")

    def sees(self, job: Job) -> bool:
        """Whether the caller may read this job."""
        token = self.token
        return token is None or token.role in ("read", "operate") or (token.role == "submit" and job.user == token.user)

    def changes(self, job: Job) -> bool:
        """Whether the caller may cancel it."""
        token = self.token
        return token is None or token.role == "operate" or (token.role == "submit" and job.user == token.user)

    def require_node(self, node: str) -> None:
        """Refuse unless the caller speaks for this node.

        Raises:
            Refused: 403.
        """
        self.require("agent")
        if self.token is not None and self.token.nodes and node not in self.token.nodes:
            raise Refused(403, f"this token speaks for {', '.join(self.token.nodes)}, not for {node}")


class Guard:
    """An ASGI application around the gateway's."""

    def __init__(
        self, app: ASGIApp, direct: "Direct", tokens: Tokens, required: bool, of_job: Callable[[str], Token | None]
    ) -> None:
        """`direct` knows the requests that a connection may answer without the application; `of_job` finds the rights of a
        token of a job.
        """
        self._app = app
        self.direct = direct
        self._tokens = tokens
        self._required = required
        self._of_job = of_job
        self._local = Caller(None)
        self._callers: dict[str, Caller] = {}
        self._failures: tuple[int, int] = (0, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through with its `Caller`, or answer it here."""
        if str(scope["type"]) != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = self.enter(scope["path"], dict(scope["headers"]))
        except Refused as error:
            await answer(send, error.problem.status, problems.body(error.problem), problems.PROBLEM, error.headers)
            return
        scope[CALLER] = caller  # type: ignore[typeddict-unknown-key]  # a key of our own
        await self._app(scope, receive, send)

    def enter(self, path: str, headers: dict[bytes, bytes]) -> Caller:
        """Who sent a request.

        Raises:
            Refused: it may not be looked at.
        """
        caller = self._caller(headers)
        if not self._required:
            _check_site(headers)
        if not caller.take():
            raise Refused(429, "too many requests with this token; slow down", headers={"Retry-After": "1"})
        _check_size(path, headers)
        return caller

    def _caller(self, headers: dict[bytes, bytes]) -> Caller:
        sent = headers.get(b"authorization")
        if sent is None:
            if self._required:
                raise Refused(401, "a token is needed: Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"})
            return self._local
        kind, _, secret = sent.decode("latin-1").partition(" ")
        secret = secret.strip() if kind.lower() == "bearer" else ""
        if secret.startswith(PREFIX):
            if not self._required:
                return self._local  # whoever sends none may do everything here
            token = self._of_job(secret)
        else:
            token = self._tokens.find(secret)
        if token is None:
            second = int(time.monotonic())
            self._failures = (second, self._failures[1] + 1 if self._failures[0] == second else 1)
            if self._failures[1] > FAILURES_A_SECOND:  # whoever has a token is not kept out by those who have none
                raise Refused(429, "too many wrong tokens; try again later", headers={"Retry-After": "1"})
            raise Refused(401, "this token is not known here, or was revoked", headers={"WWW-Authenticate": "Bearer"})
        key = token.id if token.created_us else f"{token.id} {token.user} {token.queues} {token.priority_max}"
        caller = self._callers.get(key)
        if caller is None or caller.token != token:
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            caller = self._callers[key] = Caller(token)
        return caller


def caller(request: Any) -> Caller:
    """Who sent this request."""
    found: Caller = request.scope[CALLER]
    return found


def _check_site(headers: dict[bytes, bytes]) -> None:
    """A page of another site may neither rebind a name to this machine nor post here unasked."""
    host = headers.get(b"host", b"").decode("latin-1")
    if _name(host) not in LOCAL:
        raise Refused(403, f"without tokens this gateway answers as localhost and 127.0.0.1 only, not as {host[:64]!r}")
    origin = headers.get(b"origin")
    if origin is not None and (urlsplit(origin.decode("latin-1")).hostname or "") not in LOCAL:
        raise Refused(403, "a page of another site may not call this gateway")


def _name(host: str) -> str:
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _check_size(path: str, headers: dict[bytes, bytes]) -> None:
    length = headers.get(b"content-length", b"0")
    if b"transfer-encoding" in headers:
        raise Refused(411, "say how long the body is (Content-Length)")
    most = BODY_MAX.get(path.removeprefix("/v1/").partition("/")[0], 64 * 1024)
    if not length.isdigit() or int(length) > most:
        raise Refused(413, f"the body has {length.decode('latin-1')[:20]} bytes; at most {most} are taken here")


async def answer(
    send: Send, status: int, content: bytes, media_type: str = "application/json", headers: dict[str, str] | None = None
) -> None:
    """Send a whole answer."""
    listed = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(content))]
    if headers:
        listed += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": content, "more_body": False})
