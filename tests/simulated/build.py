"""Build the library of CUDA calls that computes nothing, once for each torch and each state of its sources.

    python tests/simulated/build.py        prints the library's path; needs g++ and a torch that was built for CUDA

What torch's libraries take from CUDA's, and no source here has, becomes a call that does nothing, succeeds and is counted by name: so
one set of sources fits torch 2.11 as well as the newest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).with_name("cuda")
# Names of CUDA's runtime and driver, cuBLAS, cuDNN, NCCL, and of the profiler CUPTI, which would call itself without end.
# cuFile is not linked by any that is used here.
OURS = re.compile(r"(__cuda|cuda|cublas|cudnn|nccl|cupti|cu[A-Z](?!ile))\w+")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-Wall", "-Wno-unused-result", "-Wno-class-memaccess")


LOWEST_CUDA = 13000


class CannotBuild(Exception):
    """Why there can be no simulated device here: one sentence."""


def library() -> Path:
    """The library's path, built where it is not there yet. Raises CannotBuild."""
    if sys.platform != "linux" or not shutil.which("g++") or not shutil.which("nm"):
        raise CannotBuild("the simulated CUDA device needs Linux, g++ and nm")
    torch = Path(str(find_spec("torch").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    packages = Path(sysconfig.get_path("purelib"))
    # The compiler's part of CUDA's headers, crt/, comes with Triton alone.
    includes = [*sorted(packages.glob("nvidia/*/include")), packages / "triton" / "backends" / "nvidia" / "include"]
    if not (torch / "lib" / "libtorch_cuda.so").exists() or not any((each / "cuda.h").exists() for each in includes):
        raise CannotBuild("the simulated CUDA device needs a torch that was built for CUDA, with CUDA's headers beside it")
    header = next(each / "cuda.h" for each in includes if (each / "cuda.h").exists()).read_text()
    found = re.search(r"#define CUDA_VERSION (\d+)", header)
    if found is None or int(found[1]) < LOWEST_CUDA:
        raise CannotBuild(
            "the simulated CUDA device needs the headers of CUDA 13; its calls have other arguments in CUDA 12"
        )
    sources = sorted(SOURCES.iterdir())
    state = hashlib.sha256(b"".join(each.read_bytes() for each in [*sources, Path(__file__)])).hexdigest()[:12]
    folder = cache() / f"torch-{version('torch')}-{state}"
    built = folder / "libcuda.so.1"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:  # one process builds, and others wait for it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not built.exists():
                made = folder / f"{os.getpid()}.so"
                compile_into(made, folder, torch, [f"-I{each}" for each in includes])
                os.replace(made, built)
    return built


def cache() -> Path:
    """Beside the checkout's other made files, which git does not see."""
    return Path(__file__).resolve().parents[2] / ".venv" / "simulated"


def compile_into(made: Path, folder: Path, torch: Path, includes: list[str]) -> None:
    compile_nvrtc(folder, torch)
    own = [
        run("g++", *FLAGS, *includes, "-c", str(source), "-o", str(folder / f"{made.stem}-{source.stem}.o"))
        or str(folder / f"{made.stem}-{source.stem}.o")
        for source in sorted(SOURCES.glob("*.cpp"))
    ]
    have = symbols("-g", "--defined-only", *own)
    wanted = symbols("-D", "--undefined-only", *(str(each) for each in sorted((torch / "lib").glob("*.so"))))
    absent = sorted(name for name in wanted - have if OURS.fullmatch(name))
    rest = made.with_suffix(".c")
    calls = "\n".join(f'int {name}(void) {{ simulated_unknown("{name}"); return 0; }}' for name in absent)
    rest.write_text(f"void simulated_unknown(const char*);\n{calls}\n")
    run("gcc", "-O1", "-fPIC", "-w", "-c", str(rest), "-o", str(rest.with_suffix(".o")))
    objects = [*own, str(rest.with_suffix(".o"))]
    run("g++", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(made), *objects, "-ldl", "-lpthread", "-lrt")
    for part in (*objects, str(rest)):
        Path(part).unlink()


def compile_nvrtc(folder: Path, torch: Path) -> None:
    """Under the name and version by which torch's library needs it, so that the real one is not loaded."""
    needed = re.search(r"NEEDED.*\[(libnvrtc\.so\.\d+)\]", run("readelf", "-d", str(torch / "lib" / "libcaffe2_nvrtc.so")))
    name = needed[1] if needed else "libnvrtc.so"
    versions, made = folder / "nvrtc.map", folder / f"{os.getpid()}.nvrtc"
    versions.write_text(f"{name} {{ global: nvrtc*; local: *; }};\n")
    run(
        "gcc",
        "-O1",
        "-fPIC",
        "-shared",
        f"-Wl,-soname,{name},--version-script={versions}",
        "-o",
        str(made),
        str(SOURCES / "nvrtc.c"),
    )
    os.replace(made, folder / "libnvrtc.so")


def symbols(*words: str) -> set[str]:
    return {line.split()[-1].partition("@")[0] for line in run("nm", *words).splitlines() if len(line.split()) > 1}


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    print(library())
