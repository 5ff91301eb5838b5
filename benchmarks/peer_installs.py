"""Which other libraries `bench input --baselines` can measure, and their installation: on request, each in an environment of its own.

They cannot share one: MXNet wants a numpy from before 1.24, FFCV is compiled against the machine's OpenCV and libturbojpeg.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline._utils.errors import PacelineError


@dataclass(frozen=True)
class Peer:
    """One library, and what a virtual environment needs to run peers/with_NAME.py."""

    packages: tuple[str, ...]  # from PyPI
    shares: bool = False  # whether it sees this environment's packages (torch) behind its own
    compiled: bool = False  # whether it is compiled here, by tools that are installed first
    system: str = ""  # what the operating system must bring, as Debian calls it


PEERS: dict[str, Peer] = {
    "dali": Peer(("nvidia-dali-cuda120", "numpy")),
    "ffcv": Peer(
        (
            "numba",
            "opencv-python-headless",
            "pytorch-pfn-extras",
            "fastargs",
            "assertpy",
            "pandas",
            "tqdm",
            "psutil",
            "ffcv",
        ),
        shares=True,
        compiled=True,
        system="g++ pkg-config libturbojpeg0-dev libopencv-dev",
    ),
    "mxnet": Peer(("mxnet==1.9.1", "numpy==1.23.5", "opencv-python-headless==4.8.1.78")),
    "webdataset": Peer(("webdataset",), shares=True),
    "grain": Peer(("grain", "simplejpeg", "pillow")),
    "spdl": Peer(("spdl", "numpy"), system="libavdevice59 libavfilter8 (FFmpeg 4 to 9's libraries)"),
}
NEEDS_PYTHON = {"mxnet": (3, 11)}  # the newest that it runs on


def named_peers(words: Sequence[str]) -> list[str]:
    """The peers that --baselines means: "all", or some of them. Raises PacelineError for others."""
    names = [name for word in words for name in word.split(",") if name]
    if names == ["all"]:
        return list(PEERS)
    for name in names:
        if name not in PEERS:
            raise PacelineError(f"--baselines {name}: there is no such peer. Known: all, {', '.join(PEERS)}.")
    return list(dict.fromkeys(names))


def python_of(folder: Path, name: str) -> Path:
    """The interpreter of a peer's environment, there or not."""
    return folder / name / "bin" / "python"


def install_peers(folder: Path, names: Sequence[str], say: Callable[[str], None]) -> dict[str, str]:
    """Make an environment of each peer below `folder`; -> of those that could not be installed, why, in a line.

    One that is there already is left as it is.
    """
    failed = {}
    for name in names:
        place, part = folder / name, folder / f".{name}.part"
        if place.exists():
            say(f"{name}: there already")
            continue
        if name in NEEDS_PYTHON and sys.version_info[:2] > NEEDS_PYTHON[name]:
            newest = ".".join(map(str, NEEDS_PYTHON[name]))
            failed[name] = f"it runs on Python {newest} and older, this is {sys.version.split()[0]}"
        else:
            say(f"{name}: installing {', '.join(PEERS[name].packages)}")
            failed[name] = _install(PEERS[name], part)
        if failed[name]:
            shutil.rmtree(part, ignore_errors=True)
            say(f"{name}: not installed: {failed[name]}")
        else:
            part.rename(place)
            del failed[name]
    return failed


def _install(peer: Peer, place: Path) -> str:
    """-> "" or why not."""
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    steps = [[sys.executable, "-m", "venv", str(place)]]
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if peer.compiled:
        steps.append([*pip, "setuptools", "wheel", "numpy"])
    steps.append([*pip, *(["--no-build-isolation"] if peer.compiled else []), *peer.packages])
    for number, step in enumerate(steps):
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no word of why"]
            wanted = f" (it needs {peer.system})" if peer.system else ""
            return f"{next((line for line in lines if 'ERROR' in line or 'error:' in line), lines[-1]).strip()}{wanted}"
        if number == 0 and peer.shares:
            below = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
            (below / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return ""
