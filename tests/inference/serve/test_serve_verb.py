"""`paceline serve` as a command: what it refuses before it listens, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
import yaml
from serving import commanded, until
from tiny_runs import command, refused

from paceline._utils.commands import install_command
from paceline.cli.commands.serve import END_SECONDS, ServeFlags

TOKEN = "a-token-of-24-characters"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ["paceline serve RUN"]),
        (["nowhere"], ["nowhere", "run"]),
        (["RUN", "--host", "0.0.0.0"], ["--host 0.0.0.0", "PACELINE_TOKEN", "16"]),
        (["RUN", "--host", "::"], ["--host ::", "token"]),
        (["RUN", "--token", "short"], ["--token", "16"]),
        (["RUN", "--token", "sixteen letters, and spaces"], ["--token", "without spaces"]),
        (["RUN", "--port", "70000"], ["--port 70000", "65535"]),
        (["RUN", "--max-queue", "0"], ["--max-queue 0", "above 0"]),
        (["RUN", "--max-upload-bytes", "-1"], ["--max-upload-bytes -1"]),
        (["RUN", "--timeout-seconds", "0"], ["--timeout-seconds 0"]),
        (["RUN", "--batch-timeout-ms", "-1"], ["--batch-timeout-ms -1", "0 or more"]),
        (["RUN", "--host", "203.0.113.7", "--token", TOKEN], ["--host 203.0.113.7", "--port 0"]),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(ssd_run, capsys, monkeypatch, words, wanted):
    monkeypatch.delenv("PACELINE_TOKEN", raising=False)
    refused(command(capsys, "serve", *(ssd_run.folder if word == "RUN" else word for word in words)), *wanted)


def test_a_port_in_use_is_said_before_the_model_is_loaded(ssd_run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = command(capsys, "serve", ssd_run.folder, "--port", port)
    refused(said, f"--port {port}", "in use", "--port 0")
    assert not said.out


def test_a_missing_package_is_named_with_the_command_that_installs_it(ssd_run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("paceline.cli.commands.serve.find_spec", lambda name: None if name == "uvicorn" else object())
    refused(command(capsys, "serve", ssd_run.folder), "uvicorn", install_command("serve"))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly("one more signal"))]
)
def test_a_signal_ends_it_when_what_is_in_flight_is_answered(ssd_run, number):
    photo = next(path for path in sorted(ssd_run.data.rglob("*.*g")) if path.suffix in (".jpg", ".png")).read_bytes()
    # Each photo waits for a second one for some seconds: the signal comes while it waits.
    with commanded(ssd_run.folder, "--batch-timeout-ms", 3000, "--max-batch-size", 2) as service:
        assert service.process is not None
        with socket.create_connection(("127.0.0.1", service.port), 60) as line:
            line.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(photo) + photo)
            assert service.healthy()
            service.process.send_signal(number)
            answer = b""
            while part := line.recv(1 << 16):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200") and b'"detections"' in answer
        assert service.process.wait(60) == 0


@pytest.mark.nightly("starts the command once more")
def test_a_token_from_the_environment_opens_it_to_others_and_is_printed_nowhere(ssd_run):
    with commanded(ssd_run.folder, "--host", "0.0.0.0", PACELINE_TOKEN=TOKEN) as service:
        service.ask("/model").refused(401)
        assert service.ask("/model", Authorization=f"Bearer {TOKEN}").status == 200
        assert service.process is not None and service.process.stdout is not None
        service.process.send_signal(signal.SIGINT)
        assert TOKEN not in service.process.stdout.read()
        assert service.process.wait(60) == 0


@pytest.mark.nightly("starts the command once more")
def test_a_second_interrupt_leaves_at_once(ssd_run):
    with commanded(ssd_run.folder, "--timeout-seconds", 50) as service:
        assert service.process is not None
        ended = threading.Event()
        with socket.create_connection(("127.0.0.1", service.port), 60) as line:
            line.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx")  # keeps it waiting
            assert service.healthy()
            threading.Thread(target=lambda: (service.process.wait(60), ended.set())).start()

            def interrupted() -> bool:
                service.process.send_signal(signal.SIGINT)
                return ended.wait(1)

            until(interrupted)
        assert service.process.returncode == 75


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/serve.md").read_text()


def test_the_page_s_docker_and_kubernetes_lines_fit_the_verb_and_the_schema():
    packages = install_command("serve").removeprefix("pip install ")
    assert packages in (ROOT / "examples/serve/Dockerfile").read_text()
    assert int(re.findall(r"--stop-timeout (\d+)", PAGE)[0]) > END_SECONDS
    deployment, service = yaml.safe_load_all((ROOT / "examples/serve/kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] >= END_SECONDS + int(
        container["lifecycle"]["preStop"]["exec"]["command"][1]
    )
    assert container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["targetPort"] == ServeFlags().port
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in (deployment, service):
        validate(document, "1.34", strict=True)
