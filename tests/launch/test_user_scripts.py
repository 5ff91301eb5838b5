"""A launch writes into RUN/launch: over files of an earlier launch, and over nobody else's."""

from __future__ import annotations

import pytest
from tiny_runs import command, refused


@pytest.mark.parametrize("through, script", [("slurm", "job.sbatch"), ("local", "run.sh")])
def test_scripts_of_the_users_stay(through, script, capsys, tmp_path):
    out = tmp_path / "project"
    words = ["launch", "classify-demo", "--output-dir", out, "--dry-run", "--scheduler", through, "--system", "cpu"]
    (out / "launch").mkdir(parents=True)
    (out / "launch" / script).write_text("#!/usr/bin/env bash\n# mine\npaceline train classify-demo\n")
    refused(command(capsys, *words), script, "launch", "--output-dir")
    assert "# mine" in (out / "launch" / script).read_text()
    (out / "launch" / script).unlink()
    for _ in range(2):
        assert command(capsys, *words).code == 0
    (out / "launch").rename(tmp_path / "elsewhere")
    (out / "launch").symlink_to(tmp_path / "elsewhere")
    refused(command(capsys, *words), "link", "--output-dir")
