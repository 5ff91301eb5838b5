"""timm/NAME by timm's own loader, over real HTTP from a server that stands in for the hub, and without one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import load_file, save

timm = pytest.importorskip("timm")
NAME = "test_resnet.r160_in1k"


@pytest.fixture(scope="module")
def tensors():
    torch.manual_seed(3)
    return timm.create_model(NAME.partition(".")[0]).state_dict()


@pytest.fixture
def hub(tensors):
    content = save(tensors)

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
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
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def get(name, folder, address, *more):
    own = {"HF_ENDPOINT": address, "HF_HOME": str(folder / "hub"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "paceline", "weights", "get", name, "--out", str(folder / "kept"), *more]
    return subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)


def test_weights_of_the_hub_are_kept_as_tensors_and_brought_once(hub, tensors, tmp_path):
    done = get(f"timm/{NAME}", tmp_path, hub)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "kept" / f"timm-{NAME}.safetensors"
    kept = load_file(path)
    assert kept.keys() == tensors.keys() and all(torch.equal(kept[name], tensors[name]) for name in tensors)
    again = get(f"timm/{NAME}", tmp_path, "http://127.0.0.1:9")
    assert again.returncode == 0 and "there already" in again.stdout + again.stderr


def test_what_the_hub_does_not_give_is_one_clear_line(hub, tmp_path):
    done = get("timm/test_vit.r160_in1k", tmp_path, hub)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "--weights FILE" in done.stderr
    assert not (tmp_path / "kept").exists()
    unknown = get("timm/resnetx", tmp_path, hub)
    assert unknown.returncode == 2 and "has no such weights" in unknown.stderr
    copy = get(f"timm/{NAME}", tmp_path, hub, "--from", "copy")
    assert copy.returncode == 2 and "--weights FILE" in copy.stderr
