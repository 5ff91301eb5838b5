"""torchvision's own Mask R-CNN beside the ONNX file that `paceline export` makes of its weights: detections matched one to one.

    python scripts/export_torchvision.py --photos DIR [--count 10] [--size 800x1344] [--work DIR]

The network is `maskrcnn_resnet50_fpn` with weights drawn from seed 0. A drawn network has flat scores and finds nothing, so it is set
as training would leave it in size: BatchNorm's statistics are those of two photos, and the last layers are scaled until logits, deltas
and masks spread as a trained one's do (deviations 3, 0.5 and 2 over the regions of a photo). Both get the same pixels, padded alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from paceline.cli.main import main as paceline
from paceline.inference.export.verification import compare_predictions


def drawn(photos: list[Tensor]) -> nn.Module:
    """The network; photos (3, H, W) float32 in [0, 1] that it is set by."""
    torch.manual_seed(0)
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).eval()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.train()
    with torch.inference_mode():
        model.backbone(model.transform(photos)[0].tensors)
        for norm in norms:
            norm.eval()
        heads = model.roi_heads
        for layer, deviation in (
            (heads.box_predictor.cls_score, 3.0),
            (heads.box_predictor.bbox_pred, 0.5),
            (heads.mask_predictor.mask_fcn_logits, 2.0),
        ):
            seen: list[Tensor] = []
            hook = layer.register_forward_hook(lambda _, __, found, seen=seen: seen.append(found))
            model(photos[:1])
            hook.remove()
            values = torch.cat([one.flatten(1) for one in seen])
            layer.weight *= deviation / (values - values.mean(dim=0)).std()
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--size", default="800x1344")
    parser.add_argument("--work", type=Path, default=None)
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp())
    height, width = map(int, asked.size.split("x"))
    files = sorted(asked.photos.glob("*.jpg"))
    out = work / "maskrcnn.onnx"

    def read(file: Path) -> Tensor:
        return torchvision.io.decode_image(str(file), "RGB").float() / 255

    work.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        torch.save(drawn([read(file) for file in files[:2]]).state_dict(), work / "maskrcnn.pth")
        made = ["--output", str(out), "--image-size", asked.size, "--verify-images", "0"]
        assert paceline(["export", str(work / "maskrcnn.pth"), *made]) == 0
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).eval()
    model.load_state_dict(torch.load(work / "maskrcnn.pth"))
    spec = importlib.util.spec_from_file_location("reader", out.with_name("maskrcnn_predict.py"))
    assert spec is not None and spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    opened = reader.Model(out)

    def padded(images: list[Tensor], **_: int) -> Tensor:
        return torch.stack([nn.functional.pad(one, (0, width - one.shape[2], 0, height - one.shape[1])) for one in images])

    model.transform.batch_images = padded
    own, theirs = [], []
    for file in files[: asked.count]:
        pixels, (rows, columns), _ = reader.as_input(file.read_bytes(), opened.facts)
        sides = sorted((rows, columns))
        model.transform.min_size, model.transform.max_size = (sides[0],), sides[1]  # it is resized already
        with torch.inference_mode():
            found = model([torch.from_numpy(pixels[:rows, :columns]).permute(2, 0, 1).float() / 255])[0]
        places = 100
        row = [np.zeros((places, 4), np.float32), np.zeros(places, np.float32), -np.ones(places, np.float32)]
        count = len(found["scores"])
        # Its labels have COCO's gaps and the background; the file's are places among all of its classes.
        for into, values in zip(row, (found["boxes"], found["scores"], found["labels"].float() - 1)):
            into[:count] = values.numpy()
        boxes, scores, labels, _ = opened.session.run(
            None, dict(zip(opened.names, (pixels[None], np.array([[rows, columns]]))))
        )
        own.append(row)
        theirs.append([boxes[0], scores[0], labels[0].astype(np.float32)])
        difference = compare_predictions(own[-1:], theirs[-1:], 0.05)
        print(f"{file.name}  {difference.format_line(('boxes', 'scores', 'labels'))}", flush=True)
    print("all:", compare_predictions(own, theirs, 0.05).format_line(("boxes", "scores", "labels")))


if __name__ == "__main__":
    main()
