"""Published rates, field by field beside the lines of the fact sheet that they were typed from."""

from __future__ import annotations

import re

import pytest

from paceline.config.reference_rates import PUBLISHED, RECORDED, find_recorded_rate, find_reference_rate, usual_rates

# Lines of the fact sheet "Performance anchors", sections A1 to A4, as they stand there: columns are system, accelerators, global
# batch, epochs, minutes, images/s of one accelerator (of training alone, where it is known).
SHEET = {
    "classification": """
| DGX A100 8 (v2.0, MXNet) | 8 | 3264 | 35 | 28.65 | 3,397 | 3,264 |
| **DGX H100 8 (v4.0 eos, MXNet)** | 8 | 3200 | 35 | **13.27** | **7,165** | 7,044 |
| **H200 8 (v4.0, MXNet)** | 8 | 3200 | 35 | **12.03** | **7,950** | 7,767 |
| Gaudi2 8 (v3.1, TensorFlow / PyTorch) | 8 | 2048 | 35 | 15.90 / 16.40 | \u2013 | 5,875 / 5,696 |
| L40S 8 (v4.0) | 8 | 1600 | 35 | 50.59 | 1,854 | 1,846 |
| A30 2 (v2.0) | 2 | 408 | 35 | 235 | 1,596 | 1,588 |
| A100 64 (v2.0) | 64 | 3264 | 35 | 4.50 | 2,618 | 2,592 |
| H100 64 (v3.1 eos) | 64 | 3200 | 35 | 2.49 | 4,971 | 4,684 |
| H100 768 (v3.0) | 768 | 32256 | 56 | 0.37 | 4,442 | 4,215 |
| **H100 3584 (v3.0/3.1 CoreWeave)** | 3584 | 57344 | 77 | **0.183** | 2,817 | 2,507 |
""",
    "instance-segmentation": """
| A100 8 (v2.1) | 8 | 96 | 14.4 | 40.13 | 86.4 tracked / 88 wall |
| **H100 8 (v3.0)** | 8 | 96 (12/GPU) | 14 | **19.17** | **180** tracked / 178 wall |
| H100 64 (v3.0) | 64 | 256 | 17.25 | 4.22 | 128 |
| H100 384 = 256 train + 128 eval (v3.0) | 384 | 256 | 17.2 | **1.47** | 93 per training GPU (b=1) |
| A100 384 (v2.1) | 384 | 256 | 17.2 | 2.75 | 51 |
""",
    "detection": """
| SSD300 A100 8, PyTorch v0.7 | 8 | 912 | 50 | 10.21 | 1,196 wall |
| **SSD300 A100 8, MXNet v1.1** | 8 | 912 (114) | 51 | **8.26** | **1,529** tracked / 1,482 wall |
| SSD300 A100 64 v1.1 | 64 | 1536 | 58 | 1.52 | 1,190 / 1,137 |
| SSD300 A100 1024 v1.1 | 1024 | 3072 | 75 | 0.45 | 380 / 315 |
""",
}
# Of the same sheet, in words: (its words, workload, accelerator, count, rate).
WORDS = [
    ("A100: 2,470 img/s (1), 16,621 (8); V100-16: 1,200/8,322", "classification", "A100", 1, 2470),
    ("A100: 2,470 img/s (1), 16,621 (8); V100-16: 1,200/8,322", "classification", "V100", 1, 1200),
    ("DLE Mask R-CNN A100 24 img/s (1)", "instance-segmentation", "A100", 1, 24),
    ("detectron2 8\u00d7V100 62 img/s (7.75/GPU)", "instance-segmentation", "V100", 8, 7.75),
    ("H100 3.0 TB/s copy & 790 TFLOP/s, H200 4.3 TB/s & 790", "copy", "H100", 1, 3.0),
    ("H100 3.0 TB/s copy & 790 TFLOP/s, H200 4.3 TB/s & 790", "matmul", "H100", 1, 790),
    ("H100 3.0 TB/s copy & 790 TFLOP/s, H200 4.3 TB/s & 790", "copy", "H200", 1, 4.3),
    ("H100 3.0 TB/s copy & 790 TFLOP/s, H200 4.3 TB/s & 790", "matmul", "H200", 1, 790),
]


def rows_of_the_sheet() -> set[tuple]:
    """(workload, accelerator, count, rate, seconds) of every line above."""
    found = set()
    for workload, text in SHEET.items():
        for line in text.strip().splitlines():
            system, count, _, _, minutes, *rates = (cell.strip(" *") for cell in line.strip("|").split("|"))
            name = re.search(r"[AH]\d+0+|L40S|Gaudi2|A30", system)[0]
            if trains := re.search(r"= (\d+) train|^A100 (384)", system):
                count = trains[1] or "256"  # the same split as the H100's: 128 of 384 only evaluate
            rate = next(cell for cell in rates if cell != "\u2013")
            # "a / b" in the column of minutes is two runs; in the column of rates tracked beside wall, the first counts.
            pairs = zip(minutes.split(" / "), rate.split(" / ")) if "/" in minutes else [(minutes, rate.split(" / ")[0])]
            for minute, one in pairs:
                number = float(re.search(r"[\d,.]+", one)[0].replace(",", ""))
                found.add((workload, name, int(count), number, round(60 * float(minute.strip("*")), 2)))
    return found | {(workload, name, count, rate, 0) for _, workload, name, count, rate in WORDS}


def test_the_table_is_the_sheets_no_more_and_no_less():
    ours = [(row.workload, row.accelerator, row.count, row.rate, row.seconds) for row in PUBLISHED]
    assert set(ours) == rows_of_the_sheet() and len(set(ours)) == len(ours) == 19 + len(WORDS) + 1
    for words, _, _, _, rate in WORDS:
        assert f"{rate:,}" in words or f"{rate:g}" in words


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.workload}-{row.accelerator}-{row.count}-{row.rate:g}")
def test_each_row_says_where_it_is_from(row):
    version = re.search(r"v\d\.\d", row.source)
    assert version or row.seconds == 0, row
    if version and row.count > 2:  # its source names the same round as the sheet's line
        text = SHEET[row.workload]
        lines = [line for line in text.splitlines() if f"{row.rate:,g}" in line and row.accelerator in line]
        assert any(version[0].removeprefix("v") in line for line in lines), (row, lines)


@pytest.mark.parametrize(
    ("workload", "device", "count", "rate"),
    [
        ("classification", "NVIDIA H100 80GB HBM3", 8, 7165),
        ("classification", "NVIDIA H100 80GB HBM3", 100, 4971),
        ("classification", "NVIDIA A100-SXM4-80GB", 8, 2470),  # a plain program's
        ("classification", "Tesla V100-SXM2-16GB", 4, 1200),
        ("instance-segmentation", "NVIDIA H200", 8, None),
        ("detection", "NVIDIA A100-SXM4-40GB", 1, 1529),
        ("detection", "NVIDIA A100 80GB PCIe", 1, None),  # with less memory bandwidth and power
        ("matmul", "NVIDIA H100 NVL", 1, None),
        ("classification", "NVIDIA A10", 1, None),  # no A100
        ("matmul", "NVIDIA H200", 8, 790),
    ],
)
def test_a_device_is_judged_by_the_row_of_its_kind(workload, device, count, rate):
    row = find_reference_rate(workload, device, count)
    assert (row.rate if row else None) == rate


def test_the_usual_rate_of_an_accelerator_is_that_of_its_first_row():
    assert usual_rates("classification")["a100"] == 3397 and usual_rates("detection") == {"a100": 1529}


def test_a_cpu_that_is_not_recorded_is_judged_by_the_first_that_is():
    assert find_recorded_rate("no such CPU") is RECORDED[0] is find_recorded_rate(RECORDED[0].cpu)
    assert {name.split("/")[0] for name in RECORDED[0].cpu_seconds} == {
        "classification",
        "detection",
        "instance-segmentation",
        "scores",
    }
