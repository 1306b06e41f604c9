"""What the OpenAPI document says of bodies and answers.

Bodies go to the edge as bytes, so that what is wrong with them is said as everywhere else; here they are described by their
types. The document itself is Litestar's.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema

from muster.agent.protocol import Problem

_TAKEN: list[type[msgspec.Struct]] = []
"""What `taking` was asked for."""
_REFS = "#/components/schemas/taken.{name}"


class Document(JsonRenderPlugin):
    """The document, with the schemas of what is taken as bytes: every bound and pattern."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The document's bytes."""
        _, found = msgspec.json.schema_components(_TAKEN, ref_template=_REFS)
        schemas = openapi_schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.update({f"taken.{name}": schema for name, schema in found.items()})
        return super().render(request, openapi_schema)


def taking(kind: type[msgspec.Struct], many: bool = False) -> type[Operation]:
    """An operation whose body is one of this kind, or a list of them."""
    if kind not in _TAKEN:
        _TAKEN.append(kind)
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
        content = {"application/octet-stream": OpenAPIMediaType(schema=Schema())}
        self.request_body = RequestBody(content=content, required=True)


def returns(kind: Any, status: int = 200, *refusals: int) -> dict[int, ResponseSpec]:
    """The answer of an operation, and its refusals."""
    found = {status: ResponseSpec(kind, generate_examples=False, description="Done")}
    for code in (*refusals, 401, 403, 429):
        found[code] = ResponseSpec(
            Problem,
            generate_examples=False,
            description="Refused",
            media_type="application/problem+json",
        )
    return found
