"""The OpenAPI document: FastAPI's, with the shared shape of problems."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from services.gateway.api.answers import Problem


def install_openapi(app: FastAPI) -> None:
    """Add what every operation refers to, once."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "Problem" not in schemas:
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
