"""How far two clocks are apart, by round trips."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.launch.doctor.measure import estimate_clock_offset

delays = st.floats(1e-5, 0.5)


@given(st.floats(-1e4, 1e4), st.lists(st.tuples(delays, delays), min_size=1, max_size=20))
def test_the_true_offset_lies_within_the_uncertainty(ahead, trips):
    found, error = estimate_clock_offset(
        (1e9 + k + ahead, 1e9 + k + there, 1e9 + k + there + back + ahead) for k, (there, back) in enumerate(trips)
    )
    assert abs(found - ahead) <= error + 1e-5
    assert error <= min(there + back for there, back in trips) / 2 + 1e-5


def test_the_shortest_trip_is_believed():
    assert estimate_clock_offset([(0.0, 5.0, 8.0), (10.0, 10.1, 10.2)]) == (0.0, 0.09999999999999964)
