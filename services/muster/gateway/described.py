"""What the OpenAPI document says of bodies and answers.

Bodies go to the edge as bytes, so that what is wrong with them is said as everywhere else; here they are described by their
types. So are answers, which are bytes as well: every bound and pattern is what msgspec checks. The rest of the document is
Litestar's.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from muster.agent.protocol import Problem

STREAMED = "text/event-stream"
BYTES = "application/octet-stream"
USUAL_REFUSALS = (400, 401, 403, 411, 413, 429)
"""Any request may be answered with these: by the guard, or because a parameter makes no sense."""

_DESCRIBED: list[Any] = []
"""What `taking` and `returns` were asked for."""
_REFS = "#/components/schemas/{name}"


class Document(JsonRenderPlugin):
    """The document, with msgspec's schemas of everything that is taken and answered: every bound and pattern."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The document's bytes."""
        _, found = msgspec.json.schema_components(_DESCRIBED, ref_template=_REFS)
        openapi_schema["components"] = {**openapi_schema.get("components", {}), "schemas": found}
        return super().render(request, openapi_schema)


def taking(kind: type[msgspec.Struct], many: bool = False) -> type[Operation]:
    """An operation whose body is one of this kind, or a list of them."""
    _describe(kind)
    reference: Any = {"$ref": _REFS.format(name=kind.__name__)}
    schema: Any = {"type": "array", "items": reference} if many else reference

    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)

    return Taking


@dataclass
class TakingBytes(Operation):
    """An operation whose body is bytes."""

    def __post_init__(self) -> None:
        content = {BYTES: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY))}
        self.request_body = RequestBody(content=content, required=True)


def returns(kind: Any, status: int = 200, *refusals: int, media_type: str = "application/json") -> dict[int, ResponseSpec]:
    """The answer of an operation, and its refusals. `kind`: the type of the answer, or bytes."""
    if kind not in (None, bytes):
        _describe(kind)
    found = {status: ResponseSpec(kind, generate_examples=False, description="Done", media_type=media_type)}
    for code in dict.fromkeys((*refusals, *USUAL_REFUSALS)):
        found[code] = ResponseSpec(
            Problem,
            generate_examples=False,
            description="Refused",
            media_type="application/problem+json",
        )
    return found


def nothing(description: str) -> ResponseSpec:
    """An answer without a body."""
    return ResponseSpec(None, generate_examples=False, description=description)


def _describe(kind: Any) -> None:
    if kind not in _DESCRIBED:
        _DESCRIBED.append(kind)


_describe(Problem)
