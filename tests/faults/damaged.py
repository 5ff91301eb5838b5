"""Faults found at resume: files of the run's folder that are damaged, missing, or not what they were."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from fault import Fault, Round, Strike

SKIPPED = ("skipping step-",)
# What is done to the newest checkpoint's files, beside single bits.
NEWEST = (
    ("a tensor file cut", "cut newest/model.safetensors"),
    ("a tensor file emptied", "empty newest/optimizer.safetensors"),
    ("a tensor file missing", "remove newest/average.safetensors"),
    ("a tensor file is a folder", "folder newest/model.safetensors"),
    ("state.json cut", "cut newest/state.json"),
    ("state.json emptied", "empty newest/state.json"),
    ("state.json missing", "remove newest/state.json"),
    ("index.json cut", "cut newest/index.json"),
    ("index.json emptied", "empty newest/index.json"),
    ("index.json missing", "remove newest/index.json"),
    ("index.json of brackets", "text newest/index.json NESTED"),
    ("index.json: a file is a string", 'edit newest/index.json files.state~json "x"'),
    ("index.json: files are a list", "edit newest/index.json files []"),
    ("index.json: step -5", "edit newest/index.json step -5"),
)
# Workload, file, how many bits of it.
BITS = (
    ("resnet50", "newest/index.json", 5),
    ("resnet50", "newest/model.safetensors", 2),
    ("resnet50", "newest/state.json", 2),
    ("ssd", "newest/index.json", 2),
    ("maskrcnn", "newest/index.json", 2),
    ("maskrcnn", "newest/average.safetensors", 1),
)


def checkpoints() -> Iterator[Fault]:
    """The newest checkpoint is left aside by name, and the older one taken; links are put right."""
    family = "damaged checkpoint"

    def fallen_back(name: str, *damage: str, workload: str = "resnet50", ranks: int = 1) -> Fault:
        rounds = (Round(damage=damage, says=SKIPPED),)
        return Fault(name, family, workload, ranks, "resumed", rounds, begun=True)

    for name, damage in NEWEST:
        yield fallen_back(name, damage)
    for workload, file, count in BITS:
        for seed in range(1, count + 1):
            share = Random(f"bit {workload} {file} {seed}").random()
            name = f"seed {seed}: one bit of {file.partition('/')[2]} at {share:.0%}"
            yield fallen_back(name, f"flip {file} {share:.6f}", workload=workload)
    yield fallen_back("a tensor file cut", "cut newest/ranks.safetensors", ranks=2)
    yield fallen_back("one bit of index.json", "flip newest/index.json 0.4", workload="ssd", ranks=2)
    for name, damage in (
        ("last is missing", "remove checkpoints/last"),
        ("last leads nowhere", "link checkpoints/last step-999999"),
        ("last leads to itself", "link checkpoints/last last"),
        ("last is a file", "text checkpoints/last x"),
        ("best is missing", "remove checkpoints/best"),
        ("best leads nowhere", "link checkpoints/best step-999999"),
        ("best leads to another", "link checkpoints/best step-000009"),
    ):
        rounds = (Round(damage=(damage,)),)
        yield Fault(name, family, "resnet50", 1, "unaffected", rounds, begun=True)
    for name, damage in (
        ("all are cut", ("cut newest/model.safetensors", "cut older/model.safetensors")),
        ("all lack their index", ("remove newest/index.json", "empty older/index.json")),
    ):
        rounds = (Round("refused", damage=damage, says=("all checkpoints are damaged",)), Round(damage=("restore",)))
        yield Fault(name, family, "resnet50", 1, "refused", rounds, begun=True)


def run_files() -> Iterator[Fault]:
    """run.json: whatever is not what was written is refused by name."""
    family = "damaged run.json"
    for name, damage, says in (
        ("cut", "cut run.json", "run.json"),
        ("emptied", "empty run.json", "run.json"),
        ("of brackets", "text run.json NESTED", "run.json"),
        ("a folder", "folder run.json", "run.json"),
        ("precision fp64", 'edit run.json system.precision "fp64"', "precision|run.json"),
        ("prefetch of a billion", "edit run.json system.prefetch_steps 1000000000", "prefetch|run.json"),
        ("prefetch is a word", 'edit run.json system.prefetch_steps "many"', "prefetch|run.json"),
        ("a million threads", "edit run.json system.intra_op_threads 1000000", "threads|run.json"),
        ("system is a number", "edit run.json system 5", "system|run.json"),
        ("no accelerator", "edit run.json system.device absent", "accelerator|run.json"),
        ("no world_size", "edit run.json world_size absent", "world_size|run.json"),
        *((f"seed {seed}: one bit", f"flip run.json {Random(f'run {seed}').random():.6f}", "run.json") for seed in (1, 2, 3)),
    ):  # fmt: skip
        rounds = (Round("refused", damage=(damage,), says=(says,)), Round(damage=("restore",)))
        yield Fault(name, family, "resnet50", 1, "refused", rounds, begun=True)
    rounds = (Round("refused", damage=("flip run.json 0.5",), says=("run.json",)), Round(damage=("restore",)))
    for workload, ranks in (("ssd", 1), ("maskrcnn", 1), ("resnet50", 2)):
        yield Fault("one bit", family, workload, ranks, "refused", rounds, begun=True)


def logs() -> Iterator[Fault]:
    """events.jsonl and mllog.txt, and what a killed process may leave behind."""
    family = "damaged log"
    for name, damage, lost in (
        ("the last line of events.jsonl is torn", "cut events.jsonl 30", 0),
        ("the last line of mllog.txt is torn", "cut mllog.txt 30", 0),
        ("one bit of events.jsonl at 2 %", "flip events.jsonl 0.02", 1),
        ("one bit of events.jsonl at 30 %", "flip events.jsonl 0.3", 1),
        ("a forged result in events.jsonl", 'append events.jsonl {"event":"eval","step":6,"top1":"x"}', 0),
        ("a forged end in events.jsonl", 'append events.jsonl {"event":"end","step":18}', 0),
        ("brackets in events.jsonl", "append events.jsonl NESTED", 0),
        ("a line of mllog.txt that is not UTF-8", "append mllog.txt LATIN", 0),
    ):
        torn = "torn" in name
        rounds = (Round(damage=(damage,), says=() if torn else (f"{damage.split()[1]}.*ignored",)),)
        outcome = "unaffected" if torn else "resumed"
        yield Fault(name, family, "resnet50", 1, outcome, rounds, begun=True, lost_events=lost)
    rounds = (Round("refused", damage=("folder events.jsonl",), says=("events.jsonl",)), Round(damage=("restore",)))
    yield Fault("events.jsonl is a folder", family, "resnet50", 1, "refused", rounds, begun=True)
    family = "left behind by a killed process"
    for name, damage in (
        ("half a checkpoint", ("text checkpoints/.step-000012.999.part/model.safetensors x",)),
        ("a deleted checkpoint, half", ("text checkpoints/.step-000003.999.trash/model.safetensors x",)),
        ("half a link", ("text checkpoints/.last.01234567.part x",)),
        ("half of the logs and run.json",
         ("text .events.jsonl.01234567.part x", "text .mllog.txt.89abcdef.part x", "text .run.json.01234567.part x")),
        ("half of predictions", ("text predictions/.step-000012.json.01234567.part x",)),
    ):  # fmt: skip
        for workload in ("resnet50", "maskrcnn") if name == "half a checkpoint" else ("resnet50",):
            yield Fault(name, family, workload, 1, "unaffected", (Round(damage=damage),), begun=True)


def misuse() -> Iterator[Fault]:
    """The folder is in use, or the command is another one."""
    family = "another command on the folder"
    for workload, ranks, name, flags, says in (
        ("resnet50", 1, "another lr", "--optim.lr 0.05", "optim.lr"),
        ("resnet50", 2, "another lr", "--optim.lr 0.05", "optim.lr"),
        ("resnet50", 1, "another seed", "--seed 9", "seed"),
        ("resnet50", 1, "another width", "--model.width 16", "model.width"),
        ("resnet50", 1, "fewer photos", "--max-train-images 40", "training images differ"),
        ("ssd", 1, "another lr", "--optim.lr 0.05", "optim.lr"),
        ("maskrcnn", 1, "another seed", "--seed 9", "seed"),
    ):
        rounds = (Round("refused", flags=flags, says=(says,)), Round())
        yield Fault(name, family, workload, ranks, "refused", rounds, begun=True)
    rounds = (Round("refused", damage=("lock",), says=("another process",)), Round())
    for workload, ranks in (("resnet50", 1), ("ssd", 2)):
        yield Fault("another process holds it", family, workload, ranks, "refused", rounds, begun=True)


def disagreements() -> Iterator[Fault]:
    """Rank 1 was started with another command: both end at once, and the field is named with both values."""
    family = "ranks that disagree"
    for workload, flags, says in (
        ("resnet50", "--optim.lr 0.06", ("optim.lr", "0.02", "0.06")),
        ("resnet50", "--seed 9", ("seed", "9")),
        ("resnet50", "--system.precision bf16", ("precision", "fp32", "bf16")),
        ("resnet50", "--max-train-images 50", ("data|train.images", "50")),
        ("resnet50", "--max-images 144", ("max.images", "144", "216")),
        ("resnet50", "--max-steps 12", ("max.steps", "12")),
        ("resnet50", "--eval-every 5", ("eval.every", "5", "6")),
        ("resnet50", "--max-val-images 20", ("max.val.images", "20", "21")),
        ("resnet50", "--model.width 16", ("model.width", "16", "8")),
        ("resnet50", "--system.intra-op-threads 2", ("threads", "1", "2")),
        ("ssd", "--optim.lr 0.06", ("optim.lr", "0.002", "0.06")),
        ("ssd", "--model.match-iou 0.5", ("match.iou", "0.35", "0.5")),
        ("maskrcnn", "--seed 9", ("seed", "9")),
        ("maskrcnn", "--eval-every 4", ("eval.every", "4", "6")),
    ):
        strikes = (Strike("start", f"flags {flags}", 1),)
        rounds = (Round("refused", strikes, says=("rank.? 0", "rank.? 1", *says), alike=True),)
        short = (workload, flags) == ("resnet50", "--optim.lr 0.06")
        yield Fault(flags, family, workload, 2, "refused", rounds, short=short)


def strangers() -> Iterator[Fault]:
    """Somebody else writes into the store of a run on two ranks: it is said, and nothing follows from it."""
    family = "an unauthorized client in the store"
    ends = '{"rank": 1, "text": "x\\u001b[2J", "code": 0}'
    for name, key, value in (
        ("failed, with code 0 and an escape sequence", "failed", ends),
        ("failed, no JSON", "failed", "not json"),
        ("a vote to stop", "stop", "3"),
        ("suspicion", "suspicious", "1"),
    ):
        strikes = (Strike("step 4", f"forge {key} {value}", 1), Strike("step 8", "wait 2", 0))
        says = () if key == "suspicious" else ("(?i)ignor",)
        for workload in ("resnet50", "ssd") if key == "failed" else ("resnet50",):
            rounds = (Round(strikes=strikes, says=says),)
            yield Fault(name, family, workload, 2, "unaffected", rounds)
