"""The Python client of a Meridian network. It uses the public REST API and nothing else.

    from meridian.client import Client

    with Client.from_environment() as network:
        job = network.submit({"name": "hello", "kind": "task", "command": ["echo", "hello"]})
        print(network.wait(job["job_id"])["state"])

Answers are the JSON objects of the API (services/gateway/README.md). Errors are `ApiError` with the problem details.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

Json = dict[str, Any]

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
_PASSING_STATUSES = frozenset({429, 502, 503, 504})


def default_data_dir() -> Path:
    """Where the network of this machine keeps its state: MERIDIAN_DATA_DIR, else the user's data folder."""
    named = os.environ.get("MERIDIAN_DATA_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "meridian"


class ApiError(Exception):
    """The network refused a request. ``problem`` holds the RFC 9457 object."""

    def __init__(self, status: int, problem: Json) -> None:
        self.status = status
        self.problem = problem
        super().__init__(problem.get("detail") or problem.get("title") or f"HTTP status {status}")

    @property
    def code(self) -> str:
        """Stable name of the error for programs."""
        return str(self.problem.get("code", ""))


class UnreachableError(Exception):
    """Nothing answers at the network's address."""


def _step(name: str) -> str:
    """A name as one step of a path."""
    return quote(name, safe="")


class Client:
    """A session with the gateway. Tokens are fetched and renewed as needed; passing failures are tried again.

    ``patience_s``: how long a request is repeated while the gateway is away or overloaded. Submissions carry an
    idempotency key, so a repeated one does not start a second job.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        client_id: str = "",
        client_secret: str = "",
        patience_s: float = 15.0,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._token_expires_s = float("inf") if token else 0.0
        self._credentials = (client_id, client_secret)
        self._patience_s = patience_s
        self._http = httpx.Client(base_url=self.url, timeout=30.0)

    @classmethod
    def from_environment(cls, data_dir: Path | None = None, **options: Any) -> Self:
        """The client that the environment describes.

        MERIDIAN_URL with MERIDIAN_TOKEN, or with MERIDIAN_CLIENT_ID and MERIDIAN_CLIENT_SECRET; else ``client.json`` in
        the data directory of the network on this machine. UnreachableError when there is neither.
        """
        url = os.environ.get("MERIDIAN_URL", "")
        if url:
            return cls(
                url,
                token=os.environ.get("MERIDIAN_TOKEN", ""),
                client_id=os.environ.get("MERIDIAN_CLIENT_ID", ""),
                client_secret=os.environ.get("MERIDIAN_CLIENT_SECRET", ""),
                **options,
            )
        path = (data_dir or default_data_dir()) / "client.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise UnreachableError(
                f"no network is known: {path} does not exist (start one with `meridian up`, or set MERIDIAN_URL)"
            ) from None
        return cls(known["url"], client_id=known["client_id"], client_secret=known["client_secret"], **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def _authorization(self) -> dict[str, str]:
        if time.monotonic() > self._token_expires_s - 60 and self._credentials[0]:
            identifier, secret = self._credentials
            form = {"grant_type": "client_credentials", "client_id": identifier, "client_secret": secret}
            answer = self._send("POST", "/v1/tokens", authorized=False, data=form).json()
            self._token = answer["access_token"]
            self._token_expires_s = time.monotonic() + float(answer.get("expires_in", 300))
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    def _send(self, method: str, path: str, *, authorized: bool = True, **options: Any) -> httpx.Response:
        deadline_s = time.monotonic() + self._patience_s
        delay_s = 0.1
        while True:
            try:
                headers = {**options.pop("headers", {}), **(self._authorization() if authorized else {})}
                options["headers"] = headers
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if time.monotonic() + delay_s > deadline_s:
                    raise UnreachableError(f"{self.url} does not answer: {error}") from error
            else:
                if response.status_code not in _PASSING_STATUSES or time.monotonic() + delay_s > deadline_s:
                    return self._checked(response)
                delay_s = max(delay_s, min(float(response.headers.get("retry-after", 0)), 5.0))
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, 2.0)

    @staticmethod
    def _checked(response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        try:
            problem = response.json()
        except ValueError:
            problem = {"title": response.reason_phrase, "detail": response.text[:500]}
        raise ApiError(response.status_code, problem if isinstance(problem, dict) else {"detail": str(problem)})

    def get(self, path: str, **parameters: Any) -> Json:
        """GET a path of the API; parameters that are None are left out."""
        chosen = {name: value for name, value in parameters.items() if value is not None}
        answer: Json = self._send("GET", path, params=chosen).json()
        return answer

    def post(self, path: str, body: Any = None, *, idempotency_key: str | None = None) -> Json:
        """POST a JSON body to a path of the API."""
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        answer: Json = self._send("POST", path, json=body, headers=headers).json()
        return answer

    def put(self, path: str, text: str, *, if_match: str = "", **parameters: Any) -> Json:
        """PUT a document in YAML or JSON to a path of the API; ``if_match`` is the version that it is to replace."""
        headers = {"content-type": "application/yaml", **_condition(if_match)}
        answer: Json = self._send("PUT", path, content=text.encode(), params=parameters, headers=headers).json()
        return answer

    def items(self, path: str, *, limit: int | None = None, **parameters: Any) -> Iterator[Json]:
        """All items of a list, page by page, at most ``limit``."""
        count = 0
        token: str | None = None
        while True:
            page = self.get(path, page_token=token, **parameters)
            for item in page["items"]:
                if limit is not None and count >= limit:
                    return
                count += 1
                yield item
            token = page.get("next_page_token")
            if not token:
                return

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> Json:
        """Submit a job (the content of a job file); returns the job."""
        return self.post("/v1/jobs", dict(spec), idempotency_key=idempotency_key or uuid.uuid4().hex)

    def submit_many(self, specs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> list[Json]:
        """Submit up to 1,000 jobs in one request: all or none."""
        body = {"jobs": [dict(spec) for spec in specs]}
        answer = self.post("/v1/jobs:batch", body, idempotency_key=idempotency_key or uuid.uuid4().hex)
        jobs: list[Json] = answer["items"]
        return jobs

    def jobs(self, *, state: str | None = None, kind: str | None = None, limit: int | None = None) -> Iterator[Json]:
        """Jobs, newest first."""
        return self.items("/v1/jobs", state=state, kind=kind, limit=limit)

    def job(self, job_id: str) -> Json:
        """One job with its units and timeline."""
        return self.get(f"/v1/jobs/{_step(job_id)}")

    def cancel(self, job_id: str, reason: str = "") -> Json:
        """Ask for the end of a job."""
        return self.post(f"/v1/jobs/{_step(job_id)}/cancel", {"reason": reason} if reason else None)

    def explanation(self, job_id: str, *, unit: int | None = None, counterfactuals: bool = False) -> Json:
        """Why the job (or one unit) is where it is, or why it waits; with what would have to be otherwise."""
        return self.get(
            f"/v1/jobs/{_step(job_id)}/explanation", unit=unit, counterfactuals="true" if counterfactuals else None
        )

    def phases(self, job_id: str) -> Json:
        """The phase of each unit that trains (warm-up, fast, stable, unknown), and what its phases ask for."""
        return self.get(f"/v1/jobs/{_step(job_id)}/phases")

    def trace(self, job_id: str) -> Json:
        """Every event of the job, from all services, in order."""
        return self.get(f"/v1/jobs/{_step(job_id)}/trace")

    def log(self, job_id: str, *, unit: int = 0, rank: int = 0, offset: int = 0) -> Json:
        """A piece of a rank's log from a byte offset."""
        return self.get(f"/v1/jobs/{_step(job_id)}/logs", unit=unit, rank=rank, offset=offset)

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        poll_s: float = 0.2,
        on_change: Callable[[Json], None] | None = None,
    ) -> Json:
        """Wait until a job is final; ``on_change`` sees every new view of it. TimeoutError after ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s if timeout_s is not None else None
        seen: Json | None = None
        while True:
            job = self.job(job_id)
            if on_change is not None and job != seen:
                on_change(job)
            seen = job
            if job["state"] in FINAL_STATES:
                return job
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"job {job_id} is still {job['state']} after {timeout_s} s")
            time.sleep(poll_s)

    # -- the network ---------------------------------------------------------------------------------------------

    def domains(self) -> list[Json]:
        """All domains."""
        return list(self.items("/v1/domains"))

    def nodes(self, domain: str | None = None) -> list[Json]:
        """All nodes, or those of one domain."""
        return list(self.items("/v1/nodes", domain=domain))

    def node(self, node_id: str) -> Json:
        """One node with the reason of its state."""
        return self.get(f"/v1/nodes/{_step(node_id)}")

    def incidents(self, *, limit: int | None = None) -> Iterator[Json]:
        """Incidents, newest first."""
        return self.items("/v1/incidents", limit=limit)

    def forecasts(self, subject: str | None = None) -> list[Json]:
        """The newest forecast of each subject."""
        return list(self.items("/v1/forecasts", subject=subject))

    def waveform(
        self, jobs: Sequence[Mapping[str, Any]], *, domain: str | None = None, window_s: float | None = None
    ) -> Json:
        """What planned jobs ask for and cost over time: ``{"job": .., "start": .., "after": [..], "copies": n}`` each."""
        return self.post("/v1/waveforms", {"jobs": list(jobs), "domain": domain, "window_s": window_s})

    def advice(self, domain: str, *, planned: Sequence[Mapping[str, Any]] = (), hours: float = 24.0) -> Json:
        """A domain's peaks and valleys to come, which waiting and planned jobs could shift, and what that saves."""
        path = f"/v1/domains/{_step(domain)}/advice"
        return self.post(path, {"planned": list(planned), "hours": hours}) if planned else self.get(path, hours=hours)

    def kill_node(self, node_id: str) -> Json:
        """Kill an emulated node, as if the machine had died."""
        return self.post(f"/v1/nodes/{_step(node_id)}/kill")

    # -- the policy ----------------------------------------------------------------------------------------------

    def policy(self, version: str | None = None) -> Json:
        """The scheduler's policy in force, or one of a version that was in force, as `put_policy` takes it."""
        if version is None:
            return self.get("/v1/policy")
        found: Json = self.policy_version(version)["policy"]
        return found

    def policy_version(self, version: str) -> Json:
        """A policy that is or was in force, with the document it was set by (``source``) and its ``changes``."""
        return self.get(f"/v1/policy/versions/{_step(version)}")

    def policy_versions(self, *, limit: int | None = None) -> Iterator[Json]:
        """Changes of the policy, newest first; the first one is in force."""
        return self.items("/v1/policy/versions", limit=limit)

    def put_policy(self, document: str, *, dry_run: bool = False, if_match: str = "") -> Json:
        """Set the policy from a document in YAML or JSON; with ``dry_run`` only check and compare it.

        ApiError 422 names each wrong place with its line; 412 when ``if_match`` is not the version in force.
        """
        return self.put("/v1/policy", document, if_match=if_match, dry_run=dry_run)

    def delete_policy(self, *, dry_run: bool = False, if_match: str = "") -> Json:
        """Give up what was put: the policy that the scheduler was started with applies again."""
        answer: Json = self._send(
            "DELETE", "/v1/policy", params={"dry_run": dry_run}, headers=_condition(if_match)
        ).json()
        return answer

    # -- resources that users define -----------------------------------------------------------------------------

    def resources(self) -> list[Json]:
        """Definitions of resources, by name."""
        return list(self.items("/v1/resources"))

    def resource(self, name: str) -> Json:
        """A definition, and what each node has of it."""
        return self.get(f"/v1/resources/{_step(name)}")

    def put_resource(self, definition: Mapping[str, Any]) -> Json:
        """Define a resource, or change what was defined; ApiError 422 names each wrong field."""
        path = f"/v1/resources/{_step(str(definition['name']))}"
        answer: Json = self._send("PUT", path, json=dict(definition)).json()
        return answer

    def delete_resource(self, name: str) -> Json:
        """Remove a definition."""
        answer: Json = self._send("DELETE", f"/v1/resources/{_step(name)}").json()
        return answer

    # -- promises and objectives ---------------------------------------------------------------------------------

    def shares(self, *, windows: int | None = None) -> Json:
        """Planned against given shares of the domains per window, the newest first."""
        return self.get("/v1/shares", windows=windows)

    def service_levels(self, tenant: str | None = None) -> Json:
        """How service-level objectives stand: one's own; operators see those of all, or of one tenant."""
        return self.get("/v1/service-levels", tenant=tenant)

    def front(self, *, tenant: str | None = None, jobs: Sequence[str] | None = None, index: int | None = None) -> Json:
        """The front of one's waiting jobs; ``index`` explains one point, with the weights that stand for it."""
        return self.get("/v1/front", tenant=tenant, job=list(jobs) if jobs else None, index=index)

    def objectives(self, tenant: str) -> Json:
        """What a tenant weighs when a domain is chosen for its jobs."""
        return self.get(f"/v1/tenants/{_step(tenant)}/objectives")

    def put_objectives(self, tenant: str, weights: Mapping[str, float]) -> Json:
        """Weigh a tenant's objectives so from the next cycle on: completion, idle, transfer, energy."""
        path = f"/v1/tenants/{_step(tenant)}/objectives"
        answer: Json = self._send("PUT", path, json={"weights": dict(weights)}).json()
        return answer

    def delete_objectives(self, tenant: str) -> Json:
        """Weigh a tenant's objectives as the policy says."""
        answer: Json = self._send("DELETE", f"/v1/tenants/{_step(tenant)}/objectives").json()
        return answer

    def events(
        self, *, job: str | None = None, kind: str | None = None, after: str | None = None, reconnect: bool = True
    ) -> Iterator[Json]:
        """Live events (server-sent events); goes on behind the last one when the connection breaks."""
        yield from self._followed({"job": job, "type": kind}, after, "/v1/events", reconnect=reconnect)

    def graph(self, as_of: str | None = None) -> Json:
        """The graph with its version: domains, nodes and links, now or as they were known at a time (RFC 3339)."""
        return self.get("/v1/graph", as_of=as_of)

    def node_state(self, node_id: str) -> Json:
        """Why a node is in its state: the rule or model that decided, since when, the readings behind it."""
        return self.get(f"/v1/nodes/{_step(node_id)}/state")

    def graph_changes(self, after: int | None = None, *, reconnect: bool = True) -> Iterator[Json]:
        """Changes of the graph as they happen, each with its ``version``, going on behind version ``after``. A body of
        ``{"reset": VERSION}`` means that some in between are no longer kept: read `graph` again."""
        last = None if after is None else str(after)
        for change in self._followed({}, last, "/v1/graph/stream", reconnect=reconnect):
            yield change if "domain_id" in change else {"reset": change["version"]}

    def _followed(
        self, parameters: Mapping[str, str | None], last: str | None, path: str, *, reconnect: bool
    ) -> Iterator[Json]:
        """The events of a stream, over breaks of the connection and, once it was there, while the gateway is away or overloaded."""
        heard = False
        while True:
            try:
                with self._stream(parameters, last, path) as lines:
                    heard = True
                    for position, event in _events_of(lines):
                        last = position or last
                        if event is not None:
                            yield event
            except httpx.TransportError as error:
                if not reconnect:
                    raise UnreachableError(f"{self.url} does not answer: {error}") from error
            except UnreachableError:
                if not (reconnect and heard):
                    raise
            except ApiError as error:
                if not (reconnect and heard) or error.status not in _PASSING_STATUSES:
                    raise
            if not reconnect:
                return
            time.sleep(0.5)

    @contextmanager
    def _stream(self, parameters: Mapping[str, str | None], last: str | None, path: str) -> Iterator[Iterator[str]]:
        headers = {"accept": "text/event-stream", **self._authorization()}
        if last is not None:
            headers["last-event-id"] = last
        chosen = {name: value for name, value in parameters.items() if value}
        timeout = httpx.Timeout(30.0, read=60.0)
        with self._http.stream("GET", path, params=chosen, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                self._checked(response)
            yield _lines(response.iter_bytes())


def _condition(version: str) -> dict[str, str]:
    return {"if-match": f'"{version}"'} if version else {}


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines of an event stream as its definition has them: JSON may hold other characters that end lines elsewhere (U+2028)."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()


def _events_of(lines: Iterator[str]) -> Iterator[tuple[str, Json | None]]:
    """Positions (the newest ``id``) with the events that stand there. One comes without an event before the first of them: from
    where the stream listens, so that a connection that breaks before then loses nothing."""
    data: list[str] = []
    position = ""
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line.startswith("id:"):
            position = line[3:].removeprefix(" ")
        elif not line and (data or position):
            yield position, json.loads("\n".join(data)) if data else None
            data = []
