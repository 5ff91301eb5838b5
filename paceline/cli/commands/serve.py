"""`paceline serve RUN`: a page to drop photos on, and a JSON API beside it; RUN as `predict` takes it, a run or a file."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from paceline._utils.commands import install_command
from paceline._utils.errors import PacelineError
from paceline._utils.reporter import Lines
from paceline.cli.flags import parse
from paceline.cli.printing import Printer
from paceline.config.constraints import Help
from paceline.training.run_arguments import check_named

if TYPE_CHECKING:
    import uvicorn

    from paceline.inference.predictor import Predictor

TOKEN = "PACELINE_TOKEN"
# Kubernetes' own patience between SIGTERM and SIGKILL.
END_SECONDS = 30


@dataclass(frozen=True)
class ServeFlags:
    """What to serve, to whom."""

    run: Annotated[Path, tyro.conf.Positional, Help("run folder, weights, .onnx, .xml, .pt2, or published name")] = Path()
    host: Annotated[str, Help("address to listen on; other addresses than loopback require a token")] = "127.0.0.1"
    port: Annotated[int, Help("port to listen on; 0: a free port")] = 8000
    token: Annotated[str, Help("token for clients, at least 16 characters; PACELINE_TOKEN hides it from `ps`")] = ""
    checkpoint: Annotated[str, Help("checkpoint: best, last, or step-N")] = "best"
    task_file: Annotated[str, Help("custom task of the run, ./file.py:name, which is executed as Python")] = ""
    recipe: Annotated[str, Help("recipe that fits the weights, with flags in quotes; empty: detected")] = ""
    allow_code_execution: Annotated[bool, Help("open a .pt2 file, which can run arbitrary code of its author")] = False
    max_batch_size: Annotated[int, Help("maximum number of images per forward pass; 0: chosen for the model")] = 0
    batch_timeout_ms: Annotated[float, Help("maximum time an image waits for others to fill a batch (ms)")] = 5.0
    max_queue: Annotated[int, Help("maximum number of queued images; further requests must retry")] = 64
    max_upload_bytes: Annotated[int, Help("maximum size of an upload (bytes)")] = 32 << 20
    timeout_seconds: Annotated[float, Help("time limit of an upload, and of sending the response (s)")] = 60.0
    max_connections: Annotated[int, Help("maximum number of open connections")] = 256


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; 0 where everything in flight was answered, 75 where a second Ctrl-C cut it off."""
    flags = parse(printer, arguments, ServeFlags(), "serve", "Serve predictions over HTTP, with a web page to try them.")
    for package in ("starlette", "uvicorn", "python_multipart"):
        if find_spec(package) is None:
            raise PacelineError(f"serve: requires {package}, which is missing. Install it:  {install_command('serve')}")
    token = _checked(flags)
    requested: dict[str, Any] = {"checkpoint": flags.checkpoint, "workload": flags.task_file, "recipe": flags.recipe}
    requested["allow_code_execution"] = flags.allow_code_execution

    check_named(flags.run, verb="serve", **requested)
    with _listen(flags) as listener:
        with printer.waiting(f"opening {flags.run}"):
            import numpy as np

            from paceline import inference

            predictor = inference.open_predictor(flags.run, Lines(printer.say), **requested)
            # The first forward takes longer; and whether the network answers at all shows before anybody asks.
            predictor.predict(np.zeros((64, 64, 3), np.uint8))
        return _serve(printer, flags, token, predictor, listener)


def _checked(flags: ServeFlags) -> str:
    """The token, "" for none. Raises PacelineError for flags that cannot be."""
    from paceline.inference.serve.limits import MIN_LETTERS, is_loopback

    if flags.run == Path():
        raise PacelineError("a run or a weight file is required: paceline serve RUN")
    for name in ("max_queue", "max_upload_bytes", "timeout_seconds", "max_connections"):
        if not getattr(flags, name) > 0:
            raise PacelineError(f"--{name.replace('_', '-')} {getattr(flags, name):g}: must be above 0.")
    for name in ("max_batch_size", "batch_timeout_ms"):
        if not getattr(flags, name) >= 0:
            raise PacelineError(f"--{name.replace('_', '-')} {getattr(flags, name):g}: must be 0 or more.")
    if not 0 <= flags.port < 1 << 16:
        raise PacelineError(f"--port {flags.port}: must be from 1 to 65535, or 0 for a free port.")
    token, named = flags.token or os.environ.get(TOKEN, ""), "--token" if flags.token else TOKEN
    if token and (len(token) < MIN_LETTERS or not token.isascii() or not token.isprintable() or " " in token):
        raise PacelineError(f"{named}: must have at least {MIN_LETTERS} printable characters, without spaces.")
    if not token and not is_loopback(flags.host):
        raise PacelineError(
            f"--host {flags.host}: requires a token, because other machines can reach this address. Set {TOKEN} or --token "
            f"to at least {MIN_LETTERS} characters."
        )
    return token


def _listen(flags: ServeFlags) -> socket.socket:
    """A listening socket, before the model is loaded: who comes early waits, and a port in use is said at once."""
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    try:
        return socket.create_server((flags.host, flags.port), family=family, backlog=flags.max_connections)
    except OSError as problem:
        where = f"--host {flags.host} --port {flags.port}: not available ({problem.strerror})"
        raise PacelineError(f"{where}. Use another one, or --port 0 for a free port.") from None


def _serve(printer: Printer, flags: ServeFlags, token: str, predictor: Predictor, listener: socket.socket) -> int:
    from paceline.distributed.comm.exit_code import INTERRUPTED

    server = make_server(predictor, flags, token)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    whom = " (token required)" if token else ""
    printer.say(f"{flags.run}: {len(predictor.classes):,} classes, at {address}{whom}")
    printer.say("press Ctrl-C to stop after the current requests")
    sys.stdout.flush()  # a pipe or a log keeps lines back, and whoever starts the service waits for these
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn's own stand above these, and raise the signal again at its end
    asyncio.run(server.serve([listener]))
    return INTERRUPTED if server.force_exit else 0


def make_server(predictor: Predictor, flags: ServeFlags, token: str = "") -> uvicorn.Server:
    """A server for `serve` to be called on, within the flags' limits."""
    import uvicorn

    from paceline.inference.serve.app import make_application
    from paceline.inference.serve.limits import make_guarded_protocol

    app = make_application(
        predictor,
        most=flags.max_batch_size or predictor.trained.workload.photos_at_once,
        wait=flags.batch_timeout_ms / 1000,
        queue=flags.max_queue,
        token=token,
        max_bytes=flags.max_upload_bytes,
        seconds=flags.timeout_seconds,
    )
    config = uvicorn.Config(
        app,
        http=make_guarded_protocol(flags.max_connections, flags.timeout_seconds),
        ws="none",
        loop="asyncio",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=flags.max_connections,
        timeout_graceful_shutdown=END_SECONDS,
    )
    return uvicorn.Server(config)
