"""Energy from counters and meters laid out as Linux's sysfs shows them; and in a real run's `end` event."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest
from sysfs_machines import write
from tiny_runs import train

from paceline.distributed.device.power import (
    EnergyCounter,
    PowerMeter,
    PowerSource,
    find_hwmon_meters,
    find_rapl_packages,
    open_power_meter,
)
from paceline.training.logging.events import read_events
from paceline.training.logging.monitors import ContentionMonitor, Monitors, StragglerMonitor

SPAN = 262_143_328_850  # max_energy_range_uj of a server's package


def domain(root: Path, name: str, called: str, microjoules: int) -> Path:
    folder = root / "class/powercap" / name
    write(folder / "name", called)
    write(folder / "max_energy_range_uj", str(SPAN))
    write(folder / "energy_uj", str(microjoules))
    return folder / "energy_uj"


def test_packages_are_added_up_without_what_lies_inside_and_around_them(tmp_path):
    first, second = (
        domain(tmp_path, "intel-rapl:0", "package-0", 5_000_000),
        domain(tmp_path, "intel-rapl:1", "package-1", 7),
    )
    inside, around = domain(tmp_path, "intel-rapl:0:0", "core", 1), domain(tmp_path, "intel-rapl:2", "psys", 1)
    meter = PowerMeter(find_rapl_packages(tmp_path))
    assert meter.names == "RAPL" and meter.joules() == 0
    write(first, "15000000")
    write(second, "2000007")
    for file in (inside, around):
        write(file, "9000000000")
    assert meter.joules() == pytest.approx(12.0) and meter.joules() == pytest.approx(12.0)


def test_a_counter_that_begins_again_goes_on_and_one_without_a_span_loses_nothing_it_had(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", SPAN - 3_000_000)
    meter = PowerMeter(find_rapl_packages(tmp_path))
    write(file, str(2_000_000))
    assert meter.joules() == pytest.approx(5.0)
    write(file, str(4_000_000))
    assert meter.joules() == pytest.approx(7.0)
    values = iter([10, 30, 5, 6])
    counter = EnergyCounter(lambda: next(values), unit=1.0)
    for expected in (20.0, 20.0, 21.0):
        counter.look(1.0)
        assert counter.joules == expected


def test_a_meter_of_the_whole_machine_stands_for_all_and_other_sensors_for_none(tmp_path):
    domain(tmp_path, "intel-rapl:0", "package-0", 0)
    write(tmp_path / "class/hwmon/hwmon0/name", "coretemp")
    write(tmp_path / "class/hwmon/hwmon0/power1_average", "1")
    assert find_hwmon_meters(tmp_path) == []
    write(tmp_path / "class/hwmon/hwmon1/name", "power_meter")
    write(tmp_path / "class/hwmon/hwmon1/power1_average", "450000000")
    ((_, meter),) = find_hwmon_meters(tmp_path)
    meter.look(2.0)
    assert meter.joules == pytest.approx(900.0)
    with open_power_meter(root=tmp_path) as opened:
        assert opened.names == "power meter"


def test_nothing_readable_is_no_energy_and_what_goes_away_keeps_what_it_had(tmp_path):
    with open_power_meter(root=tmp_path) as meter:
        assert meter.names == "" and meter.joules() == 0
        assert "paceline-power" not in {thread.name for thread in threading.enumerate()}
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    write(tmp_path / "class/powercap/intel-rapl:1/name", "package-1")  # without a readable counter
    meter = PowerMeter(find_rapl_packages(tmp_path))
    write(file, "3000000")
    assert meter.joules() == pytest.approx(3.0)
    file.unlink()
    assert meter.joules() == pytest.approx(3.0)
    watts = PowerSource(lambda: 100, unit=1.0)
    watts.look(0.5)
    assert watts.joules == 50.0


def test_the_thread_sees_every_turn_of_a_counter(tmp_path, monkeypatch):
    """Two wraps between the begin and the end of the block: without the thread's looks one of them would be lost."""
    monkeypatch.setattr("paceline.distributed.device.power.INTERVAL_SECONDS", 0.001)
    file = domain(tmp_path, "intel-rapl:0", "package-0", SPAN - 1_000_000)
    with open_power_meter(root=tmp_path) as meter:
        for value in (1_000_000, SPAN - 1_000_000, 1_000_000):
            before = meter._sources[0][1].joules
            file.with_suffix(".new").write_text(f"{value}\n")
            file.with_suffix(".new").rename(file)
            until = time.monotonic() + 20
            while meter._sources[0][1].joules == before and time.monotonic() < until:
                time.sleep(0.001)
        assert meter.joules() == pytest.approx(SPAN / 1e6 + 2.0)


@pytest.mark.nightly("trains a run to its end")
def test_a_run_s_end_has_the_joules_of_its_node_and_its_page_shows_them(tmp_path, capsys, class_photos, monkeypatch):
    file, values = domain(tmp_path / "sys", "intel-rapl:0", "package-0", 0), iter(range(10**7, 10**10, 10**7))
    monkeypatch.setattr(
        "paceline.training.logging.monitors.open_power_meter", partial(open_power_meter, root=tmp_path / "sys")
    )

    def ten_joules_more(*_: object) -> None:
        write(file, str(next(values)))

    monkeypatch.setattr("paceline.training.logging.event_logger.EventLogger.passed", ten_joules_more)  # after every step
    assert train(capsys, class_photos, tmp_path / "run", steps=3).code == 0
    end = read_events(tmp_path / "run" / "events.jsonl")[-1]
    assert (end["event"], end["joules"], end["joules_by"]) == ("end", 30, "RAPL")
    assert "8.33e-06 kWh" in (tmp_path / "run" / "report.html").read_text()


def test_joules_of_other_nodes_are_those_of_the_last_train_event():
    monitors = Monitors.__new__(Monitors)
    monitors._stragglers, monitors._neighbors = StragglerMonitor(), ContentionMonitor()
    monitors._power = PowerMeter([("RAPL", EnergyCounter(iter([0, 7, 9, 11]).__next__, unit=1.0))])
    monitors.facts_of_ranks([(0, 0, 3), (0, 0, 0), (0, 0, 40), (0, 0, 0)])
    assert monitors.joules() == {"joules": 47, "joules_by": "RAPL"}
    monitors._power = PowerMeter(())
    assert monitors.joules() == {}
