"""`paceline bench input|step|eval|comm ...`: measurements beside peers, in the same run."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.cli.commands.bench_comm import run_comm
from paceline.cli.commands.bench_eval import run_eval
from paceline.cli.commands.bench_input import run_input
from paceline.cli.commands.bench_startup import run_startup
from paceline.cli.commands.bench_step import run_step
from paceline.cli.flags import run_kind
from paceline.cli.printing import Printer

KINDS = """usage: paceline bench KIND ...

  input    photos (with boxes, with masks) into batches, beside torchvision transforms in a torch DataLoader;
           with a recipe: each stage of its input, bare limits, and whether it feeds an accelerator (--emulate a100:8)
  step     a training step, beside torchvision's and timm's model in a plain loop; of SSD, beside the plain
           formulation; of Mask R-CNN, beside torchvision and detectron2; and the shapes that its photos are padded to
  eval     scoring of boxes, beside pycocotools and faster-coco-eval
  comm     all-reduce, broadcast and barrier between ranks at the sizes of gradients, beside plain torch.distributed
  startup  from Enter to the first work, beside `import torch` alone, and what is imported for it

Each answers --help."""
RUN = {"input": run_input, "step": run_step, "eval": run_eval, "comm": run_comm, "startup": run_startup}


def run(printer: Printer, arguments: Sequence[str]) -> int:
    """Run one bench."""
    return run_kind(printer, arguments, KINDS, "bench", RUN)
