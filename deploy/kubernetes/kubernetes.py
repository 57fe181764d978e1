"""The control plane of Kubernetes without Docker: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, built from source.

    python deploy/kubernetes/kubernetes.py build

All of them are one program (`main.go`) that is what it is called, so they are linked once; go.mod and go.sum name every version. Needs Go
1.24 or newer and a module proxy, as Go itself is set up to use. Takes about 10 minutes of one core, 2 GiB of Go's build cache and
120 MB here. The agent's tests use it (`make test-kubernetes`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAMS = FOLDER / "bin"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
USUAL_GO = Path("/usr/local/go/bin/go")


class KubernetesUnavailableError(RuntimeError):
    """Go is missing, or the programs could not be built; the message says which."""


def missing(folder: Path = PROGRAMS) -> str:
    """The programs that are not in ``folder``; empty: all are there."""
    return " ".join(name for name in NAMES if not os.access(folder / name, os.X_OK))


def build() -> None:
    """Put the programs into ``bin/``; raises ``KubernetesUnavailableError``."""
    go = shutil.which("go") or (str(USUAL_GO) if USUAL_GO.exists() else "")
    if not go:
        raise KubernetesUnavailableError("no go on the path")
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (FOLDER / "go.mod").read_text(encoding="utf-8"))
    assert found is not None
    version = found[1]
    major, minor, _ = version.split(".", 2)
    about = "k8s.io/component-base/version"
    stamps = f"-X {about}.gitVersion=v{version} -X {about}.gitMajor={major} -X {about}.gitMinor={minor}"
    PROGRAMS.mkdir(exist_ok=True)
    command = [go, "build", "-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags", f"-s -w {stamps}"]
    command += ["-o", str(PROGRAMS / "controlplane"), "."]
    # Nothing here needs C; a busy machine keeps a core for others.
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    if subprocess.run(command, cwd=FOLDER, env=env, check=False, preexec_fn=lambda: os.nice(10)).returncode != 0:
        raise KubernetesUnavailableError("Go could not build the programs, see above")
    for name in NAMES:
        link = PROGRAMS / name
        link.unlink(missing_ok=True)
        link.symlink_to("controlplane")


def main() -> int:
    """Exit status 0: the programs are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", choices=["build"])
    parser.parse_args()
    try:
        build()
    except KubernetesUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{PROGRAMS}: {' '.join(NAMES)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
