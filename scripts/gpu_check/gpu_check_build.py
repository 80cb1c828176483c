"""Building for scripts/gpu_check.sh: against the LibTorch of a Python, with the other libraries' headers from a folder."""

import dataclasses
import json
import os
import pathlib
import shutil
import sys

from gpu_check_session import ROOT, Failed

TARGETS = ("dtrain", "dtrun", "dtrain_runtime", "dtrain_cuda")
TORCH = "2.11.0"
DEBIAN = pathlib.Path("/usr")
HEADERS = ("CLI", "fmt", "nlohmann", "openssl", "xxhash.h", "zlib.h", "zstd.h", "zconf.h", "xxh3.h")
# zlib's and Zstandard's archives are not compiled for shared libraries, as libdtrain.so is one.
LIBRARIES = ("libcrypto.a", "libz.so.1", "libzstd.so.1")
ASK = """
import json, os, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "folder": os.path.dirname(torch.__file__),
                  "gpus": [{"name": gpu.name, "memory": gpu.total_memory, "capability": f"{gpu.major}{gpu.minor}"}
                           for gpu in gpus]}))
"""


@dataclasses.dataclass(frozen=True)
class Torch:
    """What a Python's torch says of itself and of the machine."""

    version: str
    cuda: str
    folder: pathlib.Path
    gpus: list  # name, memory in bytes, capability as "90"


def find_torch(session, python):
    """The torch of this Python; Failed where it is not the one that dtrain is written for, or sees no GPU."""
    words = json.loads(session.run([python, "-c", ASK]).stdout.splitlines()[-1])
    torch = Torch(words["torch"], words["cuda"], pathlib.Path(words["folder"]).resolve(), words["gpus"])
    if not torch.version.startswith(TORCH) or not torch.cuda:
        raise Failed(f"{python} has torch {torch.version} for CUDA {torch.cuda}; it must be {TORCH} with CUDA")
    if not torch.gpus:
        raise Failed(f"torch of {python} sees no GPU")
    return torch


def pack(folder):
    """Copies the headers and libraries of Debian's packages to where CMake's DTRAIN_DEPS_DIR expects them."""
    include, lib = folder / "include", folder / "lib"
    include.mkdir(parents=True, exist_ok=True)
    lib.mkdir(exist_ok=True)
    libraries = [next(DEBIAN.glob(f"lib/*/{name}")) for name in LIBRARIES]
    for name in HEADERS:
        # Some of OpenSSL's lie in a folder of the processor's.
        for source in (DEBIAN / "include" / name, DEBIAN / "include" / libraries[0].parent.name / name):
            if source.is_dir():
                shutil.copytree(source, include / name, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, include / name)
    for library in libraries:
        shutil.copy(library, lib)
    return folder


def has_packages():
    return all((DEBIAN / "include" / name).exists() for name in HEADERS[:7]) and all(
        any(DEBIAN.glob(f"lib/*/{name}")) for name in LIBRARIES)


def find_deps(given, build):
    if given:
        return given.resolve()
    filled = ROOT / ".deps" / "headers"
    if all((filled / "lib" / name).exists() for name in LIBRARIES):
        return filled
    if has_packages():
        return pack(build / "deps")
    raise Failed("the headers of third_party/debian.txt are missing: run gpu_check.sh --pack FOLDER where they "
                 "are installed, copy FOLDER here, and name it with --deps")


def configuration(torch, deps, build):
    """The words of CMake that configure a build for this machine's GPUs."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    linker = "lld" if shutil.which("ld.lld") else "bfd"
    architectures = ";".join(sorted({gpu["capability"] for gpu in torch.gpus}))
    values = {"CMAKE_BUILD_TYPE": "Release", "DTRAIN_TESTS": "OFF", "DTRAIN_WERROR": "OFF", "DTRAIN_LINKER": linker,
              "DTRAIN_DEPS_DIR": deps, "DTRAIN_TORCH_DIR": torch.folder, "DTRAIN_CUDA_ARCHITECTURES": architectures}
    return ["cmake", "-S", ROOT, "-B", build, *generator, *(f"-D{name}={value}" for name, value in values.items())]


def build_here(session, python, deps, build):
    """Builds what the checks need; returns the torch that it was built against."""
    # A Python may bring cmake and ninja of its own.
    os.environ["PATH"] += f":{pathlib.Path(sys.executable).parent}"
    torch = find_torch(session, python)
    configured = session.run(configuration(torch, find_deps(deps, build), build))
    missing = [line for line in configured.stdout.splitlines() if "dtrain_cuda is not built" in line]
    if missing:
        raise Failed(missing[0].removeprefix("-- "))
    session.run(["cmake", "--build", build, "--parallel", os.cpu_count(), "--target", *TARGETS], limit=session.seconds_left())
    return torch
