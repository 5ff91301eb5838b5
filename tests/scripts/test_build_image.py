"""scripts/build_image.sh with stand-ins for buildah and debootstrap: which mirror the base comes from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_image.sh"
OTHERS = "deb https://apt.vendor.example/ bookworm main\ndeb https://vendor.example/linux/debian bookworm stable\n"
STANZA = "Types: deb\nURIs: {}\nSuites: bookworm bookworm-updates\nComponents: main\n"


@pytest.mark.parametrize(
    ("sources", "stanza", "mirror"),
    [
        ("deb [arch=amd64] https://mirror.example/debian bookworm main contrib\n", "", "https://mirror.example/debian"),
        ("deb http://mirror.example/debian oldstable main\n", "", "http://mirror.example/debian"),
        ("", STANZA.format("http://mirror.example/debian/"), "http://mirror.example/debian"),
        ("deb http://mirror.example/ubuntu noble main\n", STANZA.format("mirror+file:/etc/apt/mirrors"), ""),
    ],
)
def test_the_base_comes_from_the_mirror_in_apts_sources(tmp_path, need_program, sources, stanza, mirror):
    need_program("apt-get", "apt")
    others = OTHERS if mirror else ""
    for name, text in {
        "parts/debian.sources": stanza,
        "sources.list": others + sources,
        "apt.conf": f'Dir::Etc {{ SourceList "{tmp_path}/sources.list"; SourceParts "{tmp_path}/parts"; }};',
        "bin/buildah": "#!/bin/sh\nexit 1\n",
        "bin/debootstrap": f'#!/bin/sh\necho "$4" >{tmp_path}/mirror\nexit 1\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "APT_CONFIG": f"{tmp_path}/apt.conf"}
    done = subprocess.run([SCRIPT, tmp_path / "out"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    asked = tmp_path / "mirror"
    assert (asked.read_text().strip() if asked.exists() else "") == mirror, done
    assert mirror or (done.returncode == 2 and "apt's sources" in done.stdout + done.stderr)
