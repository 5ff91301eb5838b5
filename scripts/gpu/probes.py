"""What the libraries offer: convolution with ReLU in one call, which convolutions win, the GPU's JPEG decoder, the loader."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from item import Item, run
from torch import Tensor

from paceline.config.resnet import ImageInput
from paceline.data.loader.gpu_decode import GpuDecoder, load_nvjpeg
from paceline.data.transforms.image_io import read_header
from paceline.distributed.device.accelerators import synchronize
from paceline.distributed.device.timing import measure_seconds
from paceline.tools.bench.input_cases import bare_decode, cpu_seconds, draw_unlabeled, open_file_records, paceline_loader

# Input channels, output channels, kernel side, stride, side of the input: the convolutions of ResNet-50 at 224 pixels that take
# most of its time, and the largest of SSD's and of Mask R-CNN's.
SHAPES = (
    (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56), (256, 128, 1, 1, 56),
    (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (512, 128, 1, 1, 28), (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14),
    (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7), (3, 64, 7, 2, 224),
    (256, 256, 3, 1, 38), (256, 324, 3, 1, 38), (256, 256, 3, 1, 100),
)  # fmt: skip


def pairs_of(item: Item, number: torch.dtype) -> list[tuple[str, Tensor, Tensor, Tensor, int, int]]:
    """(what, input, weight, bias, stride, padding) of each shape, channels last."""
    batch, found = (1 if item.tiny else 64), []
    for inputs, outputs, kernel, stride, side in SHAPES[: 2 if item.tiny else None]:
        x = torch.randn(batch, inputs, side, side, device=item.device).to(number)
        w = (torch.randn(outputs, inputs, kernel, kernel, device=item.device) / (inputs * kernel**2) ** 0.5).to(number)
        bias = torch.randn(outputs, device=item.device).to(number)
        x, w = (part.contiguous(memory_format=torch.channels_last) for part in (x, w))
        found.append((f"{inputs}->{outputs} {kernel}x{kernel}/{stride} at {side}", x, w, bias, stride, kernel // 2))
    return found


def conv_relu(item: Item) -> None:
    """cudnn_convolution_relu and _add_relu beside the separate operations: taken, right, and how fast."""
    torch.backends.cudnn.benchmark = True
    for number in (torch.bfloat16, torch.float16):
        for what, x, w, bias, stride, padding in pairs_of(item, number):

            def plain(x=x, w=w, bias=bias, stride=stride, padding=padding) -> Tensor:
                return F.relu(F.conv2d(x, w, bias, stride, padding))

            def fused(x=x, w=w, bias=bias, stride=stride, padding=padding) -> Tensor:
                return torch.cudnn_convolution_relu(x, w, bias, [stride] * 2, [padding] * 2, [1, 1], 1)

            shortcut = torch.randn_like(plain())

            def plain_add(plain=plain, x=x, w=w, bias=bias, stride=stride, padding=padding, z=shortcut) -> Tensor:
                return F.relu(F.conv2d(x, w, bias, stride, padding) + z)

            def fused_add(x=x, w=w, bias=bias, stride=stride, padding=padding, z=shortcut) -> Tensor:
                return torch.cudnn_convolution_add_relu(x, w, z, 1.0, bias, [stride] * 2, [padding] * 2, [1, 1], 1)

            for name, separate, together in (("relu", plain, fused), ("add relu", plain_add, fused_add)):
                item.attempt(f"{number} {name} {what}", lambda s=separate, t=together: beside(item, s, t))


def beside(item: Item, separate: Callable[[], Tensor], together: Callable[[], Tensor]) -> dict[str, Any]:
    """Times of both, and how far their results are apart."""
    wanted, got = separate().float(), together()
    return {
        "off": float((got.float() - wanted).abs().max() / wanted.abs().max()),
        "channels_last": got.is_contiguous(memory_format=torch.channels_last),
        "separate_ms": round(1000 * measure_seconds(separate, 0.0, item.device, item.block)[0], 4),
        "together_ms": round(1000 * measure_seconds(together, 0.0, item.device, item.block)[0], 4),
    }


def convolutions(item: Item) -> None:
    """Each convolution forward and backward in bf16 and fp16, searched for or guessed, with the kernels of the search."""
    for number, search in itertools.product((torch.bfloat16, torch.float16), (False, True)):
        torch.backends.cudnn.benchmark = search
        for what, x, w, _, stride, padding in pairs_of(item, number):
            x.requires_grad_()
            w.requires_grad_()
            y = F.conv2d(x, w, None, stride, padding)
            grad = torch.randn_like(y)

            def forward(x=x, w=w, stride=stride, padding=padding) -> Tensor:
                return F.conv2d(x, w, None, stride, padding)

            def backward(y=y, x=x, w=w, grad=grad) -> Any:
                return torch.autograd.grad(y, (x, w), grad, retain_graph=True)

            def work(x=x, w=w, y=y, forward=forward, backward=backward) -> dict[str, Any]:
                flop = 2 * y.numel() * w[0].numel()
                found: dict[str, Any] = {}
                for name, call, count in (("forward", forward, 1), ("backward", backward, 2)):
                    wall, _ = measure_seconds(call, 0.0, item.device, item.block)
                    found[f"{name}_ms"] = round(1000 * wall, 4)
                    found[f"{name}_tflop_per_second"] = round(count * flop / wall / 1e12, 1)
                    found[f"{name}_kernels"] = kernels_of(call, item.device)
                return found

            item.attempt(f"{number} {'searched' if search else 'guessed'} {what}", work)


def kernels_of(call: Callable[[], Any], device: torch.device) -> list[str]:
    """Names of what ran on the GPU, the longest first."""
    if device.type != "cuda":
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize(device)
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    return [row.key[:120] for row in rows[:2]]


def photos_of(item: Item) -> list[Path]:
    """COCO's photos, of those given."""
    assert item.photos is not None, "this measurement needs --photos"
    return sorted((item.photos / "coco_mini").rglob("*.jpg"))


def decode(item: Item) -> None:
    """torchvision's JPEG decoder on the GPU, 64 and 256 photos at once, and whether it gives the CPU's pixels."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    files = [read_file(str(path)) for path in photos_of(item)]
    for number in (2, 4) if item.tiny else (64, 256):
        some = (files * (number // len(files) + 1))[:number]

        def work(some: list[Tensor] = some) -> dict[str, Any]:
            def call() -> list[Tensor]:
                found = decode_jpeg(some, mode=ImageReadMode.RGB, device=item.device)
                assert isinstance(found, list)
                return found

            here = decode_jpeg(some[0], mode=ImageReadMode.RGB)
            apart = (call()[0].cpu().float() - here.float()).abs()
            wall, cpu = measure_seconds(call, 2.0, item.device)
            return {
                "images_per_second": round(len(some) / wall, 1),
                "cpu_seconds_an_image": cpu / len(some),
                "most_levels_off": float(apart.max()),
                "mean_levels_off": float(apart.mean()),
            }

        item.attempt(f"decode {number} photos on {item.device.type}", work)


def whole_input(item: Item) -> None:
    """Images into batches: our loader by its workers, torchvision's, bare decoding, nvJPEG with crop and resize."""
    from benchmarks.input_torchvision import photo_loader

    cores, size = len(os.sched_getaffinity(0)), 32 if item.tiny else 224
    assert item.photos is not None
    for name in ("imagenette224", "coco_mini"):
        paths = sorted((item.photos / name).rglob("*.jpg"))
        records = open_file_records(paths)
        counts = [1, 2] if item.tiny else [2**power for power in range((2 * cores).bit_length()) if 2**power <= 2 * cores]
        menu: dict[str, Callable[[], Any]] = {
            f"our loader, {count} workers": partial(paceline_loader, records, size, count, "simplejpeg") for count in counts
        }
        menu[f"torchvision's loader, {cores} workers"] = partial(photo_loader, paths, size, cores, "tensor")
        menu[f"bare decoding, {cores} threads"] = partial(bare_decode, paths, cores)
        menu["nvJPEG, crop and resize on the device"] = partial(on_the_device, item, paths, size)
        for what, make in menu.items():

            def work(make: Callable[[], Any] = make) -> dict[str, Any]:
                with make() as take:
                    for _ in range(2 if item.tiny else 20):
                        take()
                    began, cpu, images = time.perf_counter(), cpu_seconds(), take()
                    while time.perf_counter() - began < (0.1 if item.tiny else 2.5):
                        images += take()
                    wall = time.perf_counter() - began
                    return {
                        "images_per_second": round(images / wall, 1),
                        "cpu_ms_an_image": 1e3 * (cpu_seconds() - cpu) / images,
                    }

            item.attempt(f"{name}, {what}", work)


@contextmanager
def on_the_device(item: Item, paths: list[Path], size: int) -> Iterator[Callable[[], int]]:
    """Random crops of 64 images, decoded and resized on the device, headers and draws included."""
    renderer, data = GpuDecoder(item.device, load_nvjpeg(item.device)), [path.read_bytes() for path in paths]
    settings, numbers = ImageInput(image_size=size, decoder="nvjpeg"), itertools.count()

    def take() -> int:
        some = [next(numbers) % len(data) for _ in range(4 if item.tiny else 64)]
        draws = [draw_unlabeled(settings, 0, place, read_header(data[place], "it"), "it") for place in some]
        renderer([data[place] for place in some], draws, (size, size))
        synchronize(item.device)
        return len(some)

    yield take


if __name__ == "__main__":
    run({"conv-relu": conv_relu, "convolutions": convolutions, "decode": decode, "input": whole_input})
