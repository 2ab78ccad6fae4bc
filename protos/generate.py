"""Generates `libs/muster/api` from the protos and checks them: `python protos/generate.py [--check | --baseline]`.

The output is committed, so a clone runs without a compiler; `--check` generates into a temporary folder, compares, and
runs `buf lint` and `buf breaking` against the committed `baseline.binpb`. `--baseline` renews that baseline and is run
on a release only: comparing with the main branch would compare a submission with itself.

The validation rules' own proto (`buf/validate/validate.proto`) is not in this repository. The installed protovalidate
package carries its descriptor, and `protoc` and `buf` both accept descriptors where they accept sources.
"""

from __future__ import annotations

import argparse
import difflib
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from protovalidate._gen.buf.validate import validate_pb

PROTOS = Path(__file__).resolve().parent
OUTPUT = PROTOS.parent / "libs"
BASELINE = PROTOS / "baseline.binpb"
BIN = Path(sys.executable).parent


def imported_descriptors(folder: Path) -> Path:
    """A descriptor set of the files that are imported from packages, written to `folder`."""
    descriptors = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(desc: object) -> None:
        name = desc.name  # type: ignore[attr-defined]
        if name not in seen:
            seen.add(name)
            for dependency in desc.dependencies:  # type: ignore[attr-defined]
                add(dependency)
            descriptors.file.add().ParseFromString(desc.proto.to_binary())  # type: ignore[attr-defined]

    add(validate_pb.desc())
    path = folder / "imported.binpb"
    path.write_bytes(descriptors.SerializeToString())
    return path


def run_protoc(folder: Path, *arguments: str) -> None:
    """Compile all protos. Raises SystemExit with protoc's message on stderr when they do not compile."""
    sources = sorted(str(p.relative_to(PROTOS)) for p in PROTOS.glob("muster/**/*.proto"))
    includes = [f"-I{PROTOS}", f"-I{_site_packages()}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    descriptors = f"--descriptor_set_in={imported_descriptors(folder)}"
    plugins = [f"--plugin=protoc-gen-{p}={BIN / f'protoc-gen-{p}'}" for p in ("mypy", "mypy_grpc")]
    if protoc.main(["protoc", *includes, descriptors, *plugins, *arguments, *sources]) != 0:
        raise SystemExit(1)


def generate(output: Path, folder: Path) -> None:
    run_protoc(
        folder,
        f"--python_out={output}",
        f"--grpc_python_out={output}",
        f"--mypy_out=quiet:{output}",
        f"--mypy_grpc_out=quiet:{output}",
    )
    # The Python plugins name a proto after its file; those without a service need no stub.
    for stub in (*output.glob("muster/api/v1/*_pb2_grpc.py"), *output.glob("muster/api/v1/*_pb2_grpc.pyi")):
        source = PROTOS / "muster/api/v1" / f"{stub.name.split('_pb2_grpc')[0]}.proto"
        if "\nservice " not in source.read_text():
            stub.unlink()


def image(folder: Path) -> Path:
    """Everything as one descriptor set with comments: what buf lints and compares."""
    path = folder / "image.binpb"
    run_protoc(folder, f"--descriptor_set_out={path}", "--include_imports", "--include_source_info")
    return path


def buf(*arguments: str) -> int:
    return subprocess.run([BIN / "buf", *arguments], cwd=PROTOS, check=False).returncode


def drift(generated: Path) -> list[str]:
    """What differs between the committed output and `generated`, as unified diffs."""
    committed = {p.relative_to(OUTPUT): p for p in OUTPUT.glob("muster/api/v1/*_pb2*")}
    fresh = {p.relative_to(generated): p for p in generated.glob("muster/api/v1/*_pb2*")}
    lines: list[str] = []
    for path in sorted(committed.keys() | fresh.keys()):
        before = committed[path].read_text().splitlines() if path in committed else []
        after = fresh[path].read_text().splitlines() if path in fresh else []
        lines += list(difflib.unified_diff(before, after, f"committed/{path}", f"generated/{path}", lineterm=""))[:20]
    return lines


def check(folder: Path) -> int:
    output = folder / "libs"
    output.mkdir()
    generate(output, folder)
    differences = drift(output)
    if differences:
        sys.stderr.write("\n".join(differences) + "\n")
        sys.stderr.write("libs/muster/api differs from the protos: run protos/generate.py and commit the result\n")
    paths = ("--path", "muster/api/v1")
    config = ("--config", str(PROTOS / "buf.yaml"))
    current = str(image(folder))
    linted = buf("lint", current, *config, *paths)
    formatted = buf("format", "--diff", "--exit-code")
    compared = buf("breaking", current, "--against", str(BASELINE), *config, *paths, "--against-config", config[1])
    return 1 if differences or linted or formatted or compared else 0


def _site_packages() -> Path:
    """Where googleapis-common-protos keeps its .proto files (google/rpc/status.proto)."""
    from google.rpc import status_pb2

    return Path(str(status_pb2.__file__)).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail when the output, the style or compatibility drifted")
    mode.add_argument("--baseline", action="store_true", help="renew baseline.binpb (on a release)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.check:
            return check(folder)
        generate(OUTPUT, folder)
        if arguments.baseline:
            shutil.copyfile(image(folder), BASELINE)
        return buf("format", "-w")


if __name__ == "__main__":
    sys.exit(main())
