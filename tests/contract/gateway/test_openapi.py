"""The gateway keeps its own OpenAPI document, for good and for bad data (schemathesis, from outside, over real HTTP)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from services.gateway import cursor
from tests.harness import environment
from tests.integration.gateway.conftest import image
from tests.integration.gateway.issuer import serving

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,"
    "allow_header_conformance,use_after_free,ensure_resource_availability,ignored_auth"
)
SECONDS = os.environ.get("MERIDIAN_CONTRACT_SECONDS", "20")
SETTINGS = {
    "MERIDIAN_GATEWAY_AGENT_TOKEN": "secret",
    "MERIDIAN_GATEWAY_RATE_LIMIT": "1000000/second",
    "MERIDIAN_GATEWAY_LOGIN_RATE_LIMIT": "1000000/second",
}
FRONT: dict[str, object] = {"tenant": "tenant-c", "policy_version": "balanced-0", "waiting": 0, "looked_at": 0}
FRONT |= {"objectives": [], "points": [], "knee": None, "choice": None, "weights": None}
OBJECTIVES: dict[str, object] = {
    "tenant_id": "tenant-c",
    "own": False,
    "in_force": False,
    "policy_version": "balanced-0",
}
OBJECTIVES |= {"weights": {}, "changed_by": "", "changed_at": None}
# What each of the others answers matters not here, only that it answers.
ELSEWHERE = {
    ("POST", "/v1/tokens"): (200, {"access_token": "t", "token_type": "Bearer", "expires_in": 60, "scope": ""}),
    ("GET", "/v1/identities"): (200, {"items": [], "next_cursor": None}),
    ("POST", "/v1/estimates"): (200, {}),
    ("POST", "/v1/layouts"): (200, {}),
    ("POST", "/v1/what-if"): (200, {}),
    ("POST", "/v1/waveforms"): (200, {}),
    ("GET", "/v1/resources"): (200, {"items": []}),
    ("GET", "/v1/index"): (200, {}),
    ("POST", "/v1/probes"): (201, {}),
    ("POST", "/v1/recommendations"): (200, {}),
    ("GET", "/v1/graph"): (200, {"version": 0, "as_of": "2026-01-01T00:00:00Z", "domains": []}),
    ("GET", "/v1/graph/version"): (200, {"version": 0, "domains": {}}),
    ("GET", "/v1/node-states"): (404, {"detail": "there is no such node"}),
    ("GET", "/v1/policy"): (200, {"version": "balanced-0"}),
    ("PUT", "/v1/policy"): (200, {"version": "balanced-0"}),
    ("DELETE", "/v1/policy"): (200, {"version": "balanced-0"}),
    ("GET", "/v1/policy/versions"): (200, {"items": [], "next_before": None}),
    ("GET", "/v1/shares"): (200, {"policy_version": "balanced-0", "plan": None, "windows": []}),
    ("GET", "/v1/service-levels"): (200, {"policy_version": "balanced-0", "at": None, "items": []}),
    ("GET", "/v1/front"): (200, FRONT),
    ("GET", "/v1/tenants/tenant-c/objectives"): (200, OBJECTIVES),
    ("PUT", "/v1/tenants/tenant-c/objectives"): (200, OBJECTIVES),
    ("DELETE", "/v1/tenants/tenant-c/objectives"): (200, OBJECTIVES),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("checks", "only"),
    [
        (CHECKS, ["--exclude-path", "/v1/events", "--exclude-path", "/v1/graph/stream"]),
        # What is well-formed may still contradict itself where there is a body; lists take whatever is well-formed.
        (
            "positive_data_acceptance",
            ["--include-method", "GET", "--exclude-path-regex", "events|stream|[{]|identities"],
        ),
    ],
    ids=["conformance", "acceptance"],
)
async def test_the_service_keeps_its_document(
    checks: str, only: list[str], database_url: str, redis_url: str, tmp_path: Path
) -> None:
    with serving() as issuer:
        issuer.answers.update(ELSEWHERE)
        async with (
            environment(
                database_url,
                redis_url=redis_url,
                identity_url=issuer.url,
                scheduler_url=issuer.url,
                forecast_url=issuer.url,
                graph_url=issuer.url,
                telemetry_url=issuer.url,
            ) as env,
            env.service("gateway", SETTINGS) as service,
        ):
            await env.bus.publish(image("beijing", agent_url=issuer.url))
            token = issuer.token(scope="admin", tenant="tenant-c", exp=4_000_000_000)
            # A page token means something to its own list only, which no schema can say.
            (tmp_path / "schemathesis.toml").write_text(
                "".join(
                    f'[[operations]]\ninclude-name = "GET /v1/{path}"\n'
                    f'parameters = {{ page_token = "{cursor.encode(name, 7)}" }}\n'
                    for path, name in (
                        ("jobs", "jobs"),
                        ("nodes", "nodes"),
                        ("incidents", "incidents"),
                        ("policy/versions", "policies"),
                    )
                )
                if "positive" in checks
                else ""
            )
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).parent / "schemathesis"),
                *("run", f"{service.base_url}/openapi.json", "--url", service.base_url),
                *("--header", f"Authorization: Bearer {token}", "--max-time", SECONDS, "--seed", "1"),
                *("--request-timeout", "60"),
                *("--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--checks", checks),
                *("--mode", "all", "--warnings", "off", "--no-color", "--suppress-health-check", "all", *only),
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, output.decode()[-12_000:]
