"""The gateway as an ASGI application: routes, problems, OpenAPI. Everything it knows is given to it."""

from litestar import Litestar, Router
from litestar.config.app import AppConfig
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig
from litestar.types import ASGIApp

from muster.events.codec import Malformed
from muster.gateway import agents, cluster, jobs, measured, problems, reserving, services, streams, tree
from muster.gateway.context import Gateway
from muster.gateway.described import Document
from muster.gateway.direct import Direct
from muster.gateway.guard import Guard
from muster.gateway.job_tokens import JobTokens, Secrets
from muster.gateway.tokens import Tokens
from muster.scheduler.build import build

DESCRIPTION = """Jobs, nodes, queues and the log of one cell. What is answered with 202 is durable. Every read takes `at`, the
number of a cycle, and then answers as of that cycle. Errors are `application/problem+json`."""


def litestar(gateway: Gateway | None) -> Litestar:
    """The application without its guard; without a gateway it only describes itself."""
    handlers = [*streams.HANDLERS, *jobs.HANDLERS, *services.HANDLERS, *agents.HANDLERS, *cluster.HANDLERS, *tree.HANDLERS]
    handlers += reserving.HANDLERS
    return Litestar(
        route_handlers=[Router("/v1", route_handlers=handlers), measured.metrics],
        exception_handlers={
            problems.Refused: problems.on_refused,
            Malformed: problems.on_malformed,
            HTTPException: problems.on_http,
            Exception: problems.on_failure,
        },
        openapi_config=OpenAPIConfig(
            title="Muster",
            version=build(),
            description=DESCRIPTION,
            path="/v1/schema",
            render_plugins=[Document(path="/openapi.json")],
        ),
        state=State({"gateway": gateway}),
        request_max_body_size=8 * 1024 * 1024,
        on_app_init=[_quiet],
        logging_config=None,
    )


def application(gateway: Gateway, tokens: Tokens, required: bool, secrets: Secrets) -> ASGIApp:
    """The application as it is served. `required`: whether every request needs a token."""
    of_job = JobTokens(gateway.live, tokens, secrets).find
    return Guard(litestar(gateway), Direct(gateway), tokens, required, of_job)


def _quiet(config: AppConfig) -> AppConfig:
    """Failures are logged once, by `problems`."""
    config.debug = False
    return config
