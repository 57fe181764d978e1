"""Generate everything that is derived from the contracts: `python proto/generate.py [--check]`.

Writes `meridian/contracts/<context>/v1/*_pb2.py(+.pyi)`, `meridian/contracts/descriptors.binpb` and
`docs/asyncapi.json`. With `--check` nothing is written: exit code 1 when a committed file is not what the .proto
files give.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "meridian" / "contracts"
ASYNCAPI = ROOT / "docs" / "asyncapi.json"

# protoc derives Python imports from the path below proto/; the modules live below meridian/contracts/.
_IMPORT = re.compile(r"^(from|import) meridian\.(?!contracts\b)", flags=re.MULTILINE)


def protoc(output: Path) -> None:
    """Run protoc over all contracts; Python modules and stubs go to ``output``, the descriptor set beside them."""
    sources = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.glob("meridian/**/*.proto"))
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCE}",
            f"--python_out={output}", f"--pyi_out={output}",
            f"--descriptor_set_out={output / 'descriptors.binpb'}", "--include_imports", "--include_source_info",
            *sources,
        ],
        check=True,
    )  # fmt: skip


def generated_files() -> dict[Path, bytes]:
    """All derived protobuf files by their place in the repository."""
    files: dict[Path, bytes] = {}
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary)
        protoc(output)
        files[TARGET / "descriptors.binpb"] = (output / "descriptors.binpb").read_bytes()
        for path in sorted(output.glob("meridian/**/*_pb2.py*")):
            relative = path.relative_to(output / "meridian")
            text = _IMPORT.sub(r"\1 meridian.contracts.", path.read_text(encoding="utf-8"))
            files[TARGET / relative] = text.encode()
            for folder in (relative.parent, relative.parent.parent):
                files[TARGET / folder / "__init__.py"] = b""
    return files


def asyncapi_file() -> dict[Path, bytes]:
    """The AsyncAPI document; derived from the descriptor set that has just been written."""
    program = "from meridian.asyncapi import render; print(render(), end='')"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT)
    return {ASYNCAPI: result.stdout}


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    stale: list[Path] = []
    for step in (generated_files, asyncapi_file):
        for path, content in step().items():
            if path.exists() and path.read_bytes() == content:
                continue
            stale.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
