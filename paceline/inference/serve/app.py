"""The service's addresses: `/` the page, `/predict`, `/model`, `/health`, `/openapi.json`, which describes these; and its queue."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from paceline._utils.errors import DataError
from paceline._utils.version import __version__
from paceline.data.transforms.image_io import MAX_PIXELS, read_header
from paceline.inference.drawing.boxes import class_color
from paceline.inference.image_paths import FailedImage
from paceline.inference.results import SCORE_THRESHOLD, PredictionResult
from paceline.inference.serve.limits import AGAIN, DrainMiddleware, SecurityMiddleware, UploadLimits

if TYPE_CHECKING:
    from paceline.inference.predictor import Predictor


PAGE = Path(__file__).with_name("page.html")
DESCRIPTION = Path(__file__).with_name("openapi.json")
Done = TypeVar("Done")


class InMemoryFormParser(MultiPartParser):
    """Uploads are bounded before they are parsed; none goes through a disk."""

    spool_max_size = 1 << 62


class PredictionService:
    """What answers requests for one model."""

    def __init__(self, predictor: Predictor, batches: BatchQueue, uploads: UploadLimits) -> None:
        self._batches, self._uploads = batches, uploads
        self._finds_objects = predictor.finds_objects
        self._about = describe_model(predictor, uploads.most, batches.queue)

    async def health(self, request: Request) -> Response:
        """For probes: it answers, so it is there."""
        return JSONResponse({"status": "ok"})

    async def model(self, request: Request) -> Response:
        """What is served."""
        return JSONResponse(self._about)

    async def predict(self, request: Request) -> Response:
        """One photo as the request's body, or several as files of a form."""
        least = self._least(request)
        if not self._batches.room:
            raise _too_busy()
        async with self._uploads.body(request) as body:
            form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "multipart/form-data"
            photos = await self._photos(request, body) if form else [("", body)]
            if not body or not photos:
                raise HTTPException(400, "The request contains no image. Send the bytes of an image, or files in a form.")
            try:
                results = await _unless_gone(request, self._batches.answers([photo for _, photo in photos]))
            except QueueFull:
                raise _too_busy() from None
        answered, skipped = [], []
        for (name, _), result in zip(photos, results):
            if isinstance(result, FailedImage):
                skipped.append({"file": name, "reason": result.reason})
            else:
                answered.append({"file": name, **_record(result, least)})
        if not answered:
            error = f"{skipped[0]['reason']}." if len(skipped) == 1 else "None of the images is readable."
            return JSONResponse({"error": error, **({"skipped": skipped} if form else {})}, 422)
        if form:
            return JSONResponse({"images": answered, "skipped": skipped})
        del answered[0]["file"]
        return JSONResponse(answered[0])

    def _least(self, request: Request) -> float:
        """The smallest score of objects that are asked for."""
        text = request.query_params.get("score_threshold", "")
        if not text:
            return 0.0
        if not self._finds_objects:
            raise HTTPException(400, "score_threshold: not supported by classifiers. Remove it.")
        with suppress(ValueError):
            if 0 <= (least := float(text)) <= 1:
                return least
        raise HTTPException(400, "score_threshold: must be between 0 and 1.")

    async def _photos(self, request: Request, body: bytes) -> list[tuple[str, bytes]]:
        """The files of a form, by their names."""

        async def whole() -> AsyncGenerator[bytes, None]:
            yield body

        try:
            form = await InMemoryFormParser(request.headers, whole(), max_files=self._batches.queue, max_fields=16).parse()
        except (MultiPartException, ValueError) as problem:  # the parser's own errors are ValueErrors
            raise HTTPException(400, f"The form cannot be read: {str(problem).rstrip('.')}.") from None
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        photos = [(file.filename or "", await file.read()) for file in files]
        await form.close()
        return photos


def make_application(
    predictor: Predictor, *, most: int, wait: float, queue: int, token: str, max_bytes: int, seconds: float
) -> ASGIApp:
    """The service as an ASGI application; arguments as `BatchQueue`, `SecurityMiddleware` and `UploadLimits` have them."""
    page = PAGE.read_text(encoding="utf-8")
    description = json.loads(DESCRIPTION.read_text(encoding="utf-8"))
    description["info"]["version"] = __version__
    batches = BatchQueue(predictor, most=most, wait=wait, queue=queue)
    service = PredictionService(predictor, batches, UploadLimits(max_bytes, seconds))

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(batches.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def home(request: Request) -> Response:
        return HTMLResponse(page)

    async def described(request: Request) -> Response:
        return JSONResponse(description)

    routes = [
        Route("/", home),
        Route("/predict", service.predict, methods=["POST"]),
        Route("/model", service.model),
        Route("/health", service.health),
        Route("/openapi.json", described),
    ]
    handlers: Any = {HTTPException: _refused, ClientDisconnect: _left, Exception: _failed}
    inner = Starlette(routes=routes, lifespan=running, exception_handlers=handlers)
    return DrainMiddleware(SecurityMiddleware(inner, token=token, page=page))


def describe_model(predictor: Predictor, max_bytes: int, queue: int) -> dict[str, Any]:
    """What `/model` says; no path and no name of a host or user is in it."""
    trained, objects = predictor.trained, predictor.finds_objects
    facts, settings = trained.facts, asdict(trained.recipe.input)
    size = {name: settings[name] for name in ("eval_crop_size", "image_size", "min_size", "max_size") if name in settings}
    best, model = predictor.best_f1(), getattr(trained, "model", None)  # which a graph has not
    parameters = None if model is None else sum(tensor.numel() for tensor in model.parameters())
    return {
        "name": trained.folder.resolve().name,
        "workload": trained.recipe.task,
        "finds": "objects" if objects else "classes",
        "classes": list(predictor.classes),
        **({"category_ids": list(predictor.category_ids)} if objects else {}),
        "colors": [f"#{bytes(class_color(label)).hex()}" for label in range(1, len(predictor.classes) + 1)],
        "threshold": best.get("threshold", SCORE_THRESHOLD) if objects else 0.0,
        "best_f1": best or None,
        "exif": settings.get("exif", "ignore"),
        "size": {"input": size, "parameters": parameters},
        "limits": {"bytes": max_bytes, "photos": queue},
        "provenance": {
            "recipe": facts.name,
            "checkpoint": trained.checkpoint,
            "step": trained.step,
            "started": facts.started,
            "versions": facts.versions,
            "served_by": f"paceline {__version__}",
        },
    }


def _record(result: PredictionResult, least: float) -> dict[str, Any]:
    """As predictions.json has it, the objects from this score on."""
    record = result.to_dict()
    if "detections" in record:
        record["detections"] = [one for one in record["detections"] if one["score"] >= least]
    return record


async def _unless_gone(request: Request, work: Awaitable[Done]) -> Done:
    """What `work` gives; it is canceled when the client hangs up."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


def _too_busy() -> HTTPException:
    return HTTPException(429, "The queue is full. Retry in a second.", AGAIN)


async def _refused(request: Request, problem: HTTPException) -> Response:
    return JSONResponse({"error": problem.detail}, problem.status_code, problem.headers)


async def _left(request: Request, problem: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _failed(request: Request, problem: Exception) -> Response:
    return JSONResponse({"error": "Internal error. The reason is in the log of the service."}, 500)


# Photos of many requests gathered into batches: what waits together goes through the network together, on one thread.
#
# A batch is closed when it is full, or when its first photo has waited long enough; while one is computed, the next gathers. Its
# photos together have no more pixels than the largest single photo that is decoded, so many large ones take no more memory than it.


class QueueFull(Exception):
    """So many photos wait already that these find no place."""


@dataclass(frozen=True, eq=False)
class QueuedImage:
    """A photo that waits for its answer."""

    photo: bytes
    pixels: int
    since: float  # seconds, of time.monotonic
    answer: asyncio.Future[PredictionResult | FailedImage]


class BatchQueue:
    """The queue, and the thread that answers what is in it. Belongs to one event loop, in which `run` is a task."""

    def __init__(self, predictor: Predictor, *, most: int, wait: float, queue: int) -> None:
        """most: photos of one forward   wait: seconds that a photo waits for others   queue: photos that may wait"""
        self._predictor, self._most, self._wait, self.queue = predictor, most, wait, queue
        self._waiting: deque[QueuedImage] = deque()
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-inference")

    @property
    def room(self) -> int:
        """How many more photos may wait now."""
        return max(0, self.queue - len(self._waiting))

    async def answers(self, photos: Sequence[bytes]) -> list[PredictionResult | FailedImage]:
        """The photos' results in their order. Photos whose header shows that they cannot be read, or are too large, do not wait.

        Raises Full where the others find no place. Canceled, it takes those out of the queue that are not being computed.
        """
        sizes = await asyncio.to_thread(lambda: [_pixels_of(photo) for photo in photos])
        if sum(isinstance(size, int) for size in sizes) > self.room:
            raise QueueFull
        loop, now = asyncio.get_running_loop(), time.monotonic()
        futures: list[asyncio.Future[PredictionResult | FailedImage]] = []
        for photo, size in zip(photos, sizes):
            futures.append(loop.create_future())
            if isinstance(size, FailedImage):
                futures[-1].set_result(size)
            else:
                self._waiting.append(QueuedImage(photo, size, now, futures[-1]))
        self._tell()
        try:
            return list(await asyncio.gather(*futures))
        finally:
            if not all(future.done() for future in futures):
                for future in futures:
                    future.cancel()
            self._waiting = deque(one for one in self._waiting if not one.answer.cancelled())
            self._tell()

    async def run(self) -> None:
        """Answer until canceled; what is being computed then is waited for."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._some.wait()
                await self._gathered()
                batch = self._next()
                photos = [one.photo for one in batch]
                results = await loop.run_in_executor(self._thread, self._answered, photos)
                for one, result in zip(batch, results):
                    if one.answer.done():  # its client has gone
                        continue
                    if isinstance(result, Exception):
                        one.answer.set_exception(result)
                    else:
                        one.answer.set_result(result)
        finally:
            self._thread.shutdown()

    async def _gathered(self) -> None:
        """Until the first photo has waited long enough, or a batch is full."""
        while self._waiting and not self._enough.is_set():
            left = self._waiting[0].since + self._wait - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._enough.wait(), left)
            except asyncio.TimeoutError:
                continue

    def _next(self) -> list[QueuedImage]:
        batch: list[QueuedImage] = []
        pixels = 0
        while self._waiting and len(batch) < self._most:
            pixels += self._waiting[0].pixels
            if batch and pixels > MAX_PIXELS:
                break
            batch.append(self._waiting.popleft())
        self._tell()
        return batch

    def _tell(self) -> None:
        for event, number in ((self._some, 1), (self._enough, self._most)):
            event.set() if len(self._waiting) >= number else event.clear()

    def _answered(self, photos: list[bytes]) -> list[PredictionResult | FailedImage | Exception]:
        """On the thread. Where a batch fails, each of its photos stands alone, so that one of them spoils no other's answer."""
        try:
            return list(self._predictor.predict_iter(photos, batch=len(photos)))
        except Exception as error:
            return [error] if len(photos) == 1 else [self._answered([photo])[0] for photo in photos]


def _pixels_of(photo: bytes) -> int | FailedImage:
    """By its header alone; nothing is decoded."""
    try:
        header = read_header(photo, "the given image")
    except DataError as problem:
        return FailedImage("", str(problem).partition("\n")[0].rstrip("."))
    return header.height * header.width
