"""The names of packages and modules are made of words that an engineer of the field knows; a new word is entered here first.

Names are nouns of the field, or a verb and its object. A word that needs an explanation is the wrong word for a name.
"""

from __future__ import annotations

from pathlib import Path

import paceline

PACKAGE = Path(paceline.__file__).parent
GLOSSARY = {
    "networks and losses": """
        adapter align anchors backbones base batch box boxes classification datamodule detection detectors factory
        kernels label labels layers loss mask maskrcnn masks matching model models module nms norm normalization
        object ops paste postprocess proposals registry resnet resnet50 rle roi sampling ssd targets task timm torch
        torchvision transforms triton weight weights workload
    """,
    "training": """
        adamw auto background buffers callbacks checkpoint config consistency constraints cuda debug ema eval
        evaluate foreach gpu graph graphs history length load logger logging loop memory meters nan optim plan probe
        profiler recipe recipes request resolve resume run runs scalars schedule sgd small state stats step trackers train
        trained trainer training variants
    """,
    "data": """
        annotations archives arrays augment cache class classes color containers copy credentials crop data decode
        devkit download duplicates errors exif exports fetch files fill folder folders format formats image images
        index int8 io jitter layouts lint listing loader manifest near outlines pack pipeline polygon prepare
        published reader reading record records remote render resample rng sample sampler scenes sets shapes slots
        source split splits staged stages staleness storage store suspicious sync table tables tiling unpack val
        verify video
    """,
    "formats and libraries": """
        coco detectron2 efficientnet gaudi gloo gluoncv html http mllog mlperf mxnet onnx openvino paceline pickle
        recordio slurm ssh tar tensorflow tfrecord voc yolo zip
    """,
    "metrics and reports": """
        analysis benchmark bisect bootstrap cases compare compliance curves estimate gallery judgment k logs
        measurements metrics monitors notes page predictions preview profile qualify rate rates reference report
        results roofline scores scoring section summary time timing top trace verification
    """,
    "processes and machines": """
        accelerators affinity build code comm command commands compiler context crew detect device distributed doctor
        engines environment exit facts failure flags guard harness host hostfile inference interfaces job jobs launch
        launcher limits list local measure mounts multi node platform power preflight previous process provenance
        rank rendezvous replay roles runner runtimes schedulers serve setup shell starters stop system systems
        template threads topology version workers world
    """,
    "programs and their text": """
        advice api app container performance arguments array atomic bench calls card check checks cli common completion console dir
        dispatch drawing dummy event events export external file foreign formatting hashing help identify ids input
        journal keys layout line live main messages migrate names open outputs part parts paths predict prediction
        predictor printing read rendering reporter rows safe saved self stdout text tools translate user utils write
        writer
    """,
}

KNOWN = {word: group for group, words in GLOSSARY.items() for word in words.split()}


def words_of(path: str) -> set[str]:
    """The words in the names of a module and of the packages that hold it, by its path in the package."""
    parts = path.removesuffix(".py").split("/")
    return {word for part in parts if part not in ("__init__", "__main__") for word in part.split("_") if word}


def test_the_names_of_modules_are_words_of_the_field() -> None:
    paths = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    unknown = {path: words for path in paths if (words := words_of(path) - set(KNOWN))}
    assert not unknown, "words that the glossary does not have"
    assert not set(KNOWN) - set().union(*map(words_of, paths)), "words that no module has any more"
    assert len(KNOWN) == sum(len(words.split()) for words in GLOSSARY.values()), "a word in two groups"


def test_a_name_outside_the_glossary_is_found() -> None:
    assert words_of("training/alike.py") - set(KNOWN) == {"alike"}
    assert words_of("data/loader/first_head.py") - set(KNOWN) == {"first", "head"}
    assert not words_of("models/ops/roi_align.py") - set(KNOWN)
