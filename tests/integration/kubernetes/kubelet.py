"""A small kubelet: it runs the command of a pod as a process of this machine instead of a container, and tells what a kubelet tells.

What it does as the real one: registers its node and renews its lease, takes pods that are bound to it, starts a container only when the
Secrets of its environment are there (CreateContainerConfigError; it looks again when the pod changes, else every 10 s), expands nothing,
tells states and exit codes, ends pods that are deleted (SIGTERM, after their grace SIGKILL), serves logs with times. Images are not
pulled: one that begins with ``absent`` is not there. Memory limits are kept by looking at the process (OOMKilled).

    python -m tests.integration.kubernetes.kubelet '{"node": "k1", "server": "https://127.0.0.1:6443", ...}'
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import ssl
import sys
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent.node import proc

BEAT_S = 1.0
AGAIN_S = 10.0
MERGE = {"Content-Type": "application/strategic-merge-patch+json"}


def stamp(at: datetime | None = None) -> str:
    """A time as Kubernetes writes it."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kubelet:
    """See the module."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.node = settings["node"]
        self.http = httpx.AsyncClient(
            base_url=settings["server"],
            verify=ssl.create_default_context(cafile=settings["ca"]),
            headers={"Authorization": f"Bearer {settings['token']}"},
            timeout=20,
            trust_env=False,
        )
        self.pods: dict[str, dict[str, Any]] = {}
        self.changed: dict[str, asyncio.Event] = {}
        self.workers: dict[str, asyncio.Task[None]] = {}
        self.free = set(range(int(settings["capacity"].get("nvidia.com/gpu", 0))))

    async def run(self) -> None:
        await self._register()
        pki = Path(self.settings["folder"]) / "pki"
        routes = [Route("/containerLogs/{namespace}/{pod}/{container}", self._logs)]
        config = uvicorn.Config(
            Starlette(routes=routes), host="127.0.0.1", port=self.settings["port"], log_config=None,
            ssl_keyfile=str(pki / "server.key"), ssl_certfile=str(pki / "server.crt"),
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._watch())
            group.create_task(uvicorn.Server(config).serve())

    # --- the node --------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        about = {"name": self.node, "labels": self.settings["labels"]}
        await self._ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": about}, accept={409})
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.node, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": 40},
        }
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
        await self._ask("POST", "/api/v1/namespaces", space, accept={409})
        await self._ask("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease, accept={409})

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                now = stamp()
                ready = {
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }  # fmt: skip
                status = {
                    "capacity": self.settings["capacity"],
                    "allocatable": self.settings["capacity"],
                    "conditions": [ready],
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": self.settings["port"]}},
                }
                await self._ask("PATCH", f"/api/v1/nodes/{self.node}/status", {"status": status})
                lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.node}"
                micro = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                await self._ask("PATCH", lease, {"spec": {"renewTime": micro}})
            await asyncio.sleep(BEAT_S)

    # --- pods ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={self.node}"}
        while True:
            with contextlib.suppress(httpx.HTTPError, KeyError):
                listed = await self._ask("GET", "/api/v1/pods", query=query)
                there = {item["metadata"]["uid"] for item in listed["items"]}
                for uid in set(self.pods) - there:
                    self._heard("DELETED", self.pods[uid])
                for item in listed["items"]:
                    self._heard("MODIFIED", item)
                since = {
                    "watch": "true",
                    "resourceVersion": listed["metadata"]["resourceVersion"],
                    "timeoutSeconds": "60",
                }
                async with self.http.stream("GET", "/api/v1/pods", params={**query, **since}, timeout=70) as answer:
                    async for line in answer.aiter_lines():
                        change = json.loads(line)
                        self._heard(change["type"], change["object"])
            await asyncio.sleep(0.3)

    def _heard(self, kind: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
        event = self.changed.setdefault(uid, asyncio.Event())
        event.set()
        ended = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        if uid not in self.workers and kind != "DELETED" and (not ended or "deletionTimestamp" in pod["metadata"]):
            self.workers[uid] = asyncio.create_task(self._work(uid))
            self.workers[uid].add_done_callback(_complain)

    async def _work(self, uid: str) -> None:
        pod = self.pods[uid]
        container = pod["spec"]["containers"][0]
        wants = int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
        devices = sorted(self.free)[:wants]
        self.free -= set(devices)
        try:
            if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}:
                await self._run_container(uid, devices)
            while uid in self.pods and "deletionTimestamp" not in self.pods[uid]["metadata"]:
                await self._next(uid, AGAIN_S)
            if uid in self.pods:
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                await self._ask("DELETE", self._path(self.pods[uid]), body, accept={404, 409})
        finally:
            self.free |= set(devices)

    async def _next(self, uid: str, patience_s: float) -> None:
        event = self.changed[uid]
        event.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), patience_s)

    async def _run_container(self, uid: str, devices: list[int]) -> None:
        env = None
        while uid in self.pods:
            pod = self.pods[uid]
            container = pod["spec"]["containers"][0]
            if "deletionTimestamp" in pod["metadata"]:
                await self._tell(
                    pod,
                    "Failed",
                    {
                        "terminated": {
                            "exitCode": 137,
                            "reason": "ContainerStatusUnknown",
                            "startedAt": None,
                            "finishedAt": None,
                        }
                    },
                )
                return
            if container["image"].startswith("absent"):
                why = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
                await self._tell(pod, "Pending", {"waiting": why})
            else:
                env, missing = await self._environment(pod, container, devices)
                if not missing:
                    break
                why = {"reason": "CreateContainerConfigError", "message": f'secret "{missing}" not found'}
                await self._tell(pod, "Pending", {"waiting": why})
            await self._next(uid, AGAIN_S)
        else:
            return
        await self._run_program(uid, self.pods[uid], env or {})

    async def _environment(
        self, pod: dict[str, Any], container: dict[str, Any], devices: list[int]
    ) -> tuple[dict[str, str], str]:
        """What the image, Secrets and fields give; or the Secret that is not there."""
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/tmp",
            "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, devices)),
        }
        env |= {name: value for name, value in os.environ.items() if name == "MERIDIAN_TEST_KUBERNETES"}
        for source in container.get("envFrom", []):
            name = source["secretRef"]["name"]
            space = pod["metadata"]["namespace"]
            secret = await self._ask("GET", f"/api/v1/namespaces/{space}/secrets/{name}", accept={404})
            if "data" not in secret:
                return {}, name
            env |= {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        for item in container.get("env", []):
            found = re.fullmatch(
                r"metadata\.(annotations|labels)\['(.+)'\]", item["valueFrom"]["fieldRef"]["fieldPath"]
            )
            assert found is not None
            env[item["name"]] = pod["metadata"][found[1]][found[2]]
        return env, ""

    async def _run_program(self, uid: str, pod: dict[str, Any], env: dict[str, str]) -> None:
        container = pod["spec"]["containers"][0]
        began = datetime.now(UTC)
        process = await asyncio.create_subprocess_exec(
            *container["command"], env=env, cwd="/", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        await self._tell(pod, "Running", {"running": {"startedAt": stamp(began)}})
        written = asyncio.create_task(self._write_log(uid, process))
        ended = asyncio.create_task(process.wait())
        limit = int(container.get("resources", {}).get("limits", {}).get("memory", 0))
        reason, kill_at = "", None
        loop = asyncio.get_running_loop()
        while not ended.done():
            known = self.pods.get(uid)
            if known is None:
                _signal(process.pid, signal.SIGKILL)
            elif "deletionTimestamp" in known["metadata"]:
                grace_s = float(known["metadata"].get("deletionGracePeriodSeconds") or 0)
                if kill_at is None:
                    _signal(process.pid, signal.SIGTERM)
                due = loop.time() + grace_s
                kill_at = due if kill_at is None else min(kill_at, due)
                if loop.time() >= kill_at:
                    _signal(process.pid, signal.SIGKILL)
            if limit and proc.resident_bytes(process.pid) > limit:
                reason = "OOMKilled"
                _signal(process.pid, signal.SIGKILL)
            await asyncio.wait({ended}, timeout=0.1)
        _signal(process.pid, signal.SIGKILL)
        await written
        code = ended.result()
        code = 128 - code if code < 0 else code
        how = {
            "exitCode": code,
            "reason": reason or ("Error" if code else "Completed"),
            "startedAt": stamp(began),
            "finishedAt": stamp(),
        }
        if uid in self.pods:
            await self._tell(pod, "Failed" if code else "Succeeded", {"terminated": how})

    async def _tell(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        terminated = state.get("terminated")
        if terminated is not None and terminated["startedAt"] is None:
            terminated.update(startedAt=stamp(), finishedAt=stamp())
        container = pod["spec"]["containers"][0]
        whole = {"waiting": None, "running": None, "terminated": None, **state}
        status = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "hostIP": "127.0.0.1",
            "startTime": pod.get("status", {}).get("startTime") or stamp(),
            "containerStatuses": [
                {
                    "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                    "ready": "running" in state, "started": "running" in state, "state": whole,
                }
            ],
        }  # fmt: skip
        while True:
            with contextlib.suppress(httpx.TransportError):
                await self._ask(
                    "PATCH",
                    f"{self._path(pod)}/status",
                    {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status},
                    accept={404, 409},
                )
                return
            await asyncio.sleep(0.3)

    # --- logs ------------------------------------------------------------------------------------------------------

    def _log_path(self, uid: str) -> Path:
        return Path(self.settings["folder"]) / f"pod-{uid}.txt"

    async def _write_log(self, uid: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with self._log_path(uid).open("ab", buffering=0) as file:
            while line := await process.stdout.readline():
                now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
                file.write(f"{now} ".encode() + line)

    async def _logs(self, request: Request) -> Response:
        names = request.path_params["namespace"], request.path_params["pod"]
        found = [
            uid for uid, pod in self.pods.items() if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == names
        ]
        if not found:
            return Response("no such pod", status_code=404)
        since = request.query_params.get("sinceTime", "")
        return StreamingResponse(self._follow(found[0], since), media_type="text/plain")

    async def _follow(self, uid: str, since: str) -> AsyncIterator[bytes]:
        path, position, rest = self._log_path(uid), 0, b""
        while True:
            pod = self.pods.get(uid)
            state = {} if pod is None else (pod.get("status", {}).get("containerStatuses") or [{}])[0].get("state", {})
            over = pod is None or "terminated" in state
            if path.exists():
                with path.open("rb") as file:
                    file.seek(position)
                    data = file.read()
                position += len(data)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line[:19].decode() >= since[:19]:
                        yield line + b"\n"
            if over:
                if rest:
                    yield rest
                return
            await asyncio.sleep(0.05)

    # --- calls -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _path(pod: dict[str, Any]) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        accept: set[int] | None = None,
    ) -> dict[str, Any]:
        headers = MERGE if method == "PATCH" else {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        answer = await self.http.request(method, path, params=query, content=content, headers=headers)
        if answer.is_error and answer.status_code not in (accept or set()):
            sys.stderr.write(f"{method} {path}: {answer.text[:400]}\n")
            answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        sys.stderr.write("".join(traceback.format_exception(error)))
        sys.stderr.flush()


def _signal(pid: int, number: int) -> None:
    """To all that a container runs: its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


if __name__ == "__main__":
    asyncio.run(Kubelet(json.loads(sys.argv[1])).run())
