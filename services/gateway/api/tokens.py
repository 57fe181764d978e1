"""Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4); identity issues them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response

from meridian.errors import MalformedRequestError
from services.gateway.api import answers
from services.gateway.api.answers import problems
from services.gateway.context import Parts, note_standing

router = APIRouter(prefix="/v1", tags=["tokens"])

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-www-form-urlencoded": {
                "schema": {
                    "type": "object",
                    "required": ["grant_type"],
                    "properties": {
                        "grant_type": {"type": "string", "enum": ["client_credentials"]},
                        "client_id": {"type": "string"},
                        "client_secret": {"type": "string"},
                        "scope": {"type": "string"},
                    },
                }
            }
        },
    }
}


@router.post(
    "/tokens",
    response_model=answers.Token,
    responses=problems(400, 401, 413, 429, 503),
    openapi_extra=_FORM,
)
async def issue_token(parts: Parts, request: Request) -> Response:
    """Get a token for the client id and secret given in the form or by HTTP Basic."""
    address = request.client.host if request.client else ""
    note_standing(request, await parts.limiter.hit(parts.login_limit, "login", address))
    body = await request.body()
    _check_form(request.headers.get("content-type", ""), body)
    passed_on = {name: request.headers[name] for name in ("content-type", "authorization") if name in request.headers}
    answer = await parts.identity.send("POST", "/v1/tokens", content=body, headers=passed_on)
    headers = {name: answer.headers[name] for name in ("www-authenticate", "retry-after") if name in answer.headers}
    if answer.status_code == 401:
        headers.setdefault("www-authenticate", 'Basic realm="meridian"')
    headers["Cache-Control"] = "no-store"
    media_type = answer.headers.get("content-type", "application/json")
    return Response(answer.content, status_code=answer.status_code, media_type=media_type, headers=headers)


def _check_form(content_type: str, body: bytes) -> None:
    if content_type.split(";", maxsplit=1)[0].strip().lower() != "application/x-www-form-urlencoded":
        raise MalformedRequestError("a form is expected (application/x-www-form-urlencoded)")
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True)
    except ValueError:
        raise MalformedRequestError("the body is no form") from None
    if fields.get("grant_type") != ["client_credentials"]:
        raise MalformedRequestError("the form needs grant_type=client_credentials")
