"""When two names of a workload mean one."""

from __future__ import annotations

import pytest

from paceline._utils.user_code import is_same_workload


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("ssd", "ssd", True),
        ("ssd", "maskrcnn", False),
        ("./a.py:mine", "/elsewhere/b.py:mine", True),  # the file may have moved
        ("./a.py:mine", "./a.py:yours", False),
        ("ssd", "./a.py:ssd", False),
    ],
)
def test_one_of_the_menu_and_one_of_a_file_are_two_workloads_whatever_they_are_called(name, other, same):
    assert is_same_workload(name, other) is is_same_workload(other, name) is same
