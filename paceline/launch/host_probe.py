"""Looks around on one host before anything is started there, and prints one line of JSON behind MARK.

    ssh node2 python3 - '{"folder": ...}' < host_probe.py

Sent over the connection, so that nothing of paceline needs to be there: standard library only, and any Python from 3.8 on.
What is found is judged where the launch was typed (schedulers/hostfile.py).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys

MARK = "paceline-probe "


def probe_host(wanted: dict) -> dict:
    """wanted   workdir, token (path of a file), port (0 = none to try), programs"""
    there = os.path.isdir(wanted["workdir"])
    if there:
        os.chdir(wanted["workdir"])  # Python looks for packages there too, for ranks as for this question
    return {
        "workdir": there,
        "token": parse_probe(wanted["token"]),
        "port": explain_taken_port(wanted["port"]),
        "programs": [name for name in wanted["programs"] if shutil.which(name)],
        "interfaces": [name for _, name in socket.if_nameindex()],
        **collect_versions(),
    }


def parse_probe(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(100)
    except OSError:
        return ""


def explain_taken_port(port: int) -> str:
    """'' where it is free, or not asked for."""
    if not port:
        return ""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            probe.listen(1)
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""


def collect_versions() -> dict:
    """Of this interpreter, of paceline and of torch; '' where there is none, with the reason."""
    import importlib.metadata

    result = {"python": sys.executable, "paceline": "", "torch": "", "why": ""}
    try:
        import paceline

        result["paceline"] = paceline.__version__
        result["torch"] = importlib.metadata.version("torch")
    except Exception as problem:  # whatever the import of a broken installation raises is what there is to tell
        result["why"] = f"{type(problem).__name__}: {problem}"
    return result


if __name__ == "__main__":
    print(MARK + json.dumps(probe_host(json.loads(sys.argv[1]))), flush=True)
