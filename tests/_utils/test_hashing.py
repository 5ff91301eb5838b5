"""Digests are hashlib's, and a JSON value has one whatever way it is written."""

from __future__ import annotations

import hashlib
import json

import pytest

from paceline._utils import hashing
from paceline._utils.hashing import BLOCK, file_sha256, json_sha256, sha256, source_sha256
from paceline._utils.names import flatten
from paceline.config.recipes import RECIPES


def test_text_and_bytes_have_hashlibs_digest():
    assert sha256("Käfer") == sha256("Käfer".encode()) == hashlib.sha256("Käfer".encode()).hexdigest()


def test_a_json_values_digest_depends_only_on_its_content():
    value = {"b": [1, 2.5, None], "a": {"d": "ü", "c": True}}
    assert json_sha256(value) == json_sha256(json.loads(json.dumps(value, indent=2)))
    assert json_sha256({"b": 1, "a": 2}) == json_sha256({"a": 2, "b": 1}) != json_sha256({"a": 2, "b": 2})


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_file_has_the_digest_of_its_bytes(tmp_path, size):
    (tmp_path / "file").write_bytes(content := bytes(i % 251 for i in range(size)))
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_nested_values_have_dotted_names():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}
    recipe = RECIPES["resnet50"]()
    assert flatten(recipe, "recipe.")["recipe.optim.lr"] == recipe.optim.lr


def test_a_changed_source_file_is_another_source(monkeypatch, tmp_path):
    (tmp_path / "_utils").mkdir()
    monkeypatch.setattr(hashing, "__file__", str(tmp_path / "_utils" / "hashing.py"))
    digests = set()
    for text in ("x = 1", "x = 2"):
        (tmp_path / "any.py").write_text(text)
        digests.add(source_sha256.__wrapped__())
    (tmp_path / "any.py").rename(tmp_path / "other.py")
    assert len(digests | {source_sha256.__wrapped__()}) == 3
