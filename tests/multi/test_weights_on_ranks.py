"""Published weights by name, on several ranks: one of them brings the file, and all of them begin from it, or none begins."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from small_run import Trainer, said

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("ranks")]

RECIPE = """
import os
from small_recipe import small
from paceline.models.weights.download import PUBLISHED, PretrainedWeights, WeightDownload

PUBLISHED["shared"] = PretrainedWeights("of a test", (WeightDownload(os.environ["ADDRESS"], sha256_prefix=os.environ["DIGEST"]),))
"""


@pytest.mark.nightly("two live ranks beside a server")
def test_one_rank_brings_what_all_begin_from_and_where_nobody_can_all_are_refused(trainer, zygote, tmp_path):
    source = trainer.finished(tmp_path / "source", "--max-steps 1 --max-val-images 3")
    content = (source / "checkpoints" / "last" / "model.safetensors").read_bytes()
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Tests are silent."""

    (tmp_path / "mine.py").write_text(RECIPE)
    ours = Trainer(zygote, tmp_path, recipes=tmp_path / "mine.py", photos=lambda _: trainer.photos)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        digest = hashlib.sha256(content).hexdigest()[:8]
        ours.environ |= {"ADDRESS": f"http://127.0.0.1:{server.server_port}/w.safetensors", "DIGEST": digest}
        ours.finished(tmp_path / "run", "--max-steps 1 --max-val-images 3 --weights shared", ranks=2)
        kept = Path(ours.environ["PACELINE_CACHE"]) / "weights" / "w.safetensors"
        assert kept.read_bytes() == content
        gets = len(asked)
        ours.finished(tmp_path / "again", "--max-steps 1 --max-val-images 3 --weights shared", ranks=2)
        assert len(asked) == gets  # the cache has it
        server.shutdown()
    # A look at the address and the bytes, once, not once a rank.
    assert gets <= 2, asked
    kept.unlink()
    ended = ours.run(ours.train(tmp_path / "third", "--weights shared"), ranks=2)
    assert ended[0].code == 2 and all(rank.code for rank in ended), said(ended)
    assert "paceline weights download shared --source FILE_OR_DIR" in ended[0].text and not (tmp_path / "third").exists()
