"""This package's version, and the folder that it was imported from. Imports nothing of the package."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).resolve().parents[1]
