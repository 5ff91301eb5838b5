"""timm/NAME by timm's own loader, over real HTTP from a server that stands in for the hub, and without one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import load_file, save

pytestmark = pytest.mark.usefixtures("timm")
NAME = "test_resnet.r160_in1k"


@pytest.fixture(scope="module")
def tensors(timm):
    torch.manual_seed(3)
    return timm.create_model(NAME.partition(".")[0]).state_dict()


@pytest.fixture(scope="module")
def hub(tensors):
    """Its address, and the paths that it was asked for."""
    content, asked = save(tensors), []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            there = self.path == f"/timm/{NAME}/resolve/main/model.safetensors"
            self.send_response(200 if there else 404)
            self.send_header("Content-Length", str(len(content) if there else 0))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            return there

        def do_GET(self):
            if self.do_HEAD():
                self.wfile.write(content)

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


# The hub's library reads its address as it is imported: all commands in one process that has it.
PROGRAM = """
import contextlib, io, json, sys
from paceline.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["weights", "download", *words])
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def got(hub, tmp_path_factory):
    """The folders of what was kept and of what was refused, and how each command ended, by a name: code, stdout, stderr."""
    folder = tmp_path_factory.mktemp("hub")
    kept, refused = folder / "kept", folder / "refused"
    commands = {
        "first": [f"timm/{NAME}", "--output-dir", str(kept)],
        "again": [f"timm/{NAME}", "--output-dir", str(kept)],
        "not there": ["timm/test_vit.r160_in1k", "--output-dir", str(refused)],
        "unknown": ["timm/resnetx", "--output-dir", str(refused)],
        "copy": [f"timm/{NAME}", "--output-dir", str(refused), "--source", "copy"],
    }
    own = {"HF_ENDPOINT": hub[0], "HF_HOME": str(folder / "hub"), "HF_HUB_DISABLE_XET": "1"}
    words = [sys.executable, "-c", PROGRAM, json.dumps(list(commands.values()))]
    done = subprocess.run(words, env={**os.environ, **own}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return kept, refused, dict(zip(commands, map(json.loads, done.stdout.splitlines()), strict=True))


def test_weights_of_the_hub_are_kept_as_tensors_and_brought_once(hub, got, tensors):
    folder, _, ended = got
    assert ended["first"][0] == 0, ended
    kept = load_file(folder / f"timm-{NAME}.safetensors")
    assert kept.keys() == tensors.keys() and all(torch.equal(kept[name], tensors[name]) for name in tensors)
    code, out, err = ended["again"]
    assert code == 0 and "already exists" in out + err
    assert hub[1].count(f"/timm/{NAME}/resolve/main/model.safetensors") == 2  # once looked at, once read


def test_what_the_hub_does_not_give_is_one_clear_line(got):
    _, refused, ended = got
    for name, wanted in (("not there", "--weights FILE"), ("unknown", "not found in timm"), ("copy", "--weights FILE")):
        code, _, err = ended[name]
        assert code == 2 and "Traceback" not in err and wanted in err, ended[name]
    assert not refused.exists()
