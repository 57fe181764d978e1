"""HTTP of clients: tokens by OAuth 2.0 client credentials, and what is needed to check them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from meridian.errors import MalformedRequestError
from services.identity.access import SCOPES, Access, InvalidClientError, OAuthError, UnsupportedGrantError
from services.identity.measures import IdentityMeasures
from services.identity.token_keys import ALGORITHM, TokenKeys

MAX_BODY_BYTES = 16_384


async def _parameters(request: Request) -> Mapping[str, str]:
    body = await request.body()
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        if kind == "application/json":
            content = json.loads(body)
            # Halves of surrogate pairs are no text.
            json.dumps(content, ensure_ascii=False).encode()
            if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
                raise MalformedRequestError("the body is not a JSON object of strings")
            return content
        pairs = parse_qsl(body.decode(), keep_blank_values=True)
    except (ValueError, RecursionError):
        raise MalformedRequestError("the body is neither JSON nor a form") from None
    if len(dict(pairs)) != len(pairs):
        # RFC 6749, section 3.2: parameters must not be included more than once.
        raise OAuthError("a parameter stands twice in the form")
    return dict(pairs)


def _basic(header: str) -> tuple[str, str] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, separator, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidClientError("the Authorization header is not Basic credentials") from None
    if not separator:
        raise InvalidClientError("the Authorization header is not Basic credentials")
    return unquote_plus(name), unquote_plus(secret)


def token_router(access: Access, keys: TokenKeys, measures: IdentityMeasures, *, issuer: str) -> APIRouter:
    """The routes that clients and resource servers call."""
    router = APIRouter()

    @router.post("/v1/tokens")
    async def tokens(request: Request) -> JSONResponse:
        try:
            parameters = await _parameters(request)
            basic = _basic(request.headers.get("authorization", ""))
            client_id, secret = basic or (parameters.get("client_id", ""), parameters.get("client_secret", ""))
            if parameters.get("grant_type") != "client_credentials":
                raise UnsupportedGrantError("grant_type must be client_credentials")
            token, grant = await access.grant(client_id, secret, parameters.get("scope", ""))
        except OAuthError as error:
            measures.tokens.labels(error.error).inc()
            raise
        measures.tokens.labels("granted").inc()
        body: dict[str, Any] = {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": int((grant.expires_at - grant.issued_at).total_seconds()),
            "scope": " ".join(grant.scopes),
            "token_id": grant.token_id,
        }
        return JSONResponse(body, headers={"Cache-Control": "no-store", "Pragma": "no-cache"})

    @router.get("/.well-known/jwks.json")
    async def jwks() -> JSONResponse:
        return JSONResponse(keys.public_set(), headers={"Cache-Control": "public, max-age=300"})

    @router.get("/.well-known/openid-configuration")
    async def configuration(request: Request) -> dict[str, Any]:
        base = str(request.base_url).rstrip("/")
        return {
            "issuer": issuer,
            "jwks_uri": f"{base}/.well-known/jwks.json",
            "token_endpoint": f"{base}/v1/tokens",
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "scopes_supported": list(SCOPES),
            "response_types_supported": [],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }

    return router
