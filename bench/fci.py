"""The driver fci against franka-sim: tracking, success rate, CPU, and a change of gains in motion.

A sinusoid of +-50 mm at 0.25 Hz is sent at 20 Hz, as an actor would. Errors are those from the
ideal curve at the moment of the measurement, delay included. Needs requirements-fci.txt, and
requirements-fci-sim.txt in .venv-fci. The robot and the driver's process run with real-time
priority where that is allowed, as they do in a lab; the load of the machine is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from _figures import Report
from numpy.typing import NDArray

import hil_tasks
from hil_robot_bridge.drivers.base import DriverError
from hil_robot_bridge.drivers.fci import Fci
from hil_robot_bridge.drivers.fci_process import FciConfig
from hil_robot_bridge.fibers import Fiber, Timeouts
from hil_robot_bridge.poses import RigidPose
from hil_robot_bridge.state import ArmState
from hil_sim.fci.simulated_robot import SimulatedRobot, SimulatedRobotError

HOST = "127.0.0.51"
AMPLITUDE, FREQUENCY, COMMAND_HZ = 0.05, 0.25, 20.0  # m, Hz, Hz
JUMP_WINDOW = 0.1  # s after a change of gains
OMEGA = 2.0 * math.pi * FREQUENCY


class Rig:
    """Robot, driver, and the loop of a bridge."""

    def __init__(self) -> None:
        self.task = hil_tasks.load("reach")
        self.robot = SimulatedRobot(self.task, HOST, priority=20)
        self.timeouts = Timeouts()
        self.driver = Fci(FciConfig(host=HOST, realtime=False, priority=10), self.timeouts)
        self.states: list[tuple[float, ArmState]] = []
        self.rates: list[float] = []
        self.driver.connect(self._on_state, lambda _: None)

    def _on_state(self, state: ArmState) -> None:
        self.states.append((time.time(), state))

    def turn(self, seconds: float = 0.005) -> None:
        """One turn of the loop."""
        end = self.driver._end
        select.select([end] if end is not None else [], [], [], seconds)
        self.robot.poll()
        self.timeouts.check()
        self.driver.read()
        self.driver.watch()

    def until(self, done: Callable[[], Any], seconds: float = 60.0) -> None:
        """Go on until something is true."""
        limit = time.monotonic() + seconds
        while not done():
            if time.monotonic() > limit:
                raise DriverError(f"the robot does not follow: {self.driver.health()}")
            self.turn()

    def set_gains(self, **changes: Any) -> None:
        """SERL's gains with changes; waits until they are read back."""
        spec = dataclasses.replace(
            self.task.spec.compliance["policy"],
            translational_stiffness=(2000.0,) * 3,
            translational_damping=(89.0,) * 3,
            rotational_stiffness=(150.0,) * 3,
            rotational_damping=(7.0,) * 3,
            error_clip=(0.01, 0.01, 0.01, 0.05, 0.05, 0.05),
        )
        spec = dataclasses.replace(spec, **changes)
        ended: list[Exception | None] = []
        Fiber(self.driver.set_compliance(spec), lambda _, error: ended.append(error))
        self.until(lambda: ended)
        if ended[0] is not None:
            raise ended[0]

    def close(self) -> None:
        """End both processes."""
        self.driver.close()
        self.robot.close()


def ideal(start: NDArray[np.float64], t: float) -> NDArray[np.float64]:
    """Point (3,) of the curve, t seconds after its begin."""
    offset = np.array([0.0, AMPLITUDE * math.sin(OMEGA * t), 0.0])
    return start + offset


def follow(
    rig: Rig, start: RigidPose, seconds: float, events: dict[float, Callable[[], None]]
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[float]]:
    """Lead the arm along the curve; run the events at their times.

    Returns:
        Times (n,), measured positions (n, 3), and times at which the events were over.
    """
    rig.states.clear()
    rig.rates.clear()
    begin, due, over = time.time(), 0.0, []
    centre, pending = np.array(start.position), sorted(events)
    while (now := time.time() - begin) < seconds:
        if now >= due:
            point = ideal(centre, now)
            pose = RigidPose((point[0], point[1], point[2]), start.quaternion)
            rig.driver.command_pose(pose, 0)
            due += 1.0 / COMMAND_HZ
        if pending and now >= pending[0]:
            events[pending.pop(0)]()
            over.append(time.time() - begin)
        rig.turn(max(0.0, min(0.005, due - now)))
        rig.rates.append(rig.driver.health().success_rate)
    times = np.array([state.stamp_ns * 1e-9 - begin for _, state in rig.states])
    points = np.array([state.pose.position for _, state in rig.states])
    return times, points, over


def jumps(
    times: NDArray[np.float64], points: NDArray[np.float64], lag: float, changes: list[float]
) -> list[float]:
    """Largest departure (m) after each change from where the motion would have gone on to.

    That is the measured position and speed before the change and the curve's acceleration.
    """
    found = []
    for at in changes:
        before = (times > at - 0.2) & (times <= at)
        after = (times > at) & (times <= at + JUMP_WINDOW)
        if before.sum() < 4 or not after.any():
            continue
        acceleration = np.zeros(3)
        acceleration[1] = -AMPLITUDE * OMEGA**2 * math.sin(OMEGA * (at - lag))
        dt = times - at
        straight = points - 0.5 * np.outer(dt**2, acceleration)
        line = np.polyfit(dt[before], straight[before], 1)
        expected = line[1] + np.outer(dt[after], line[0])
        away = np.linalg.norm(straight[after] - expected, axis=1)
        found.append(float(away.max()))
    return found


def measure(rig: Rig, cycles: int, report: Report) -> None:
    """All figures."""
    rig.until(lambda: rig.states and not rig.driver.health().text)
    rig.set_gains()
    start = rig.states[-1][1].pose
    period = 1.0 / FREQUENCY
    process = psutil.Process(rig.driver.pid)
    follow(rig, start, period, {})
    cpu, wall = process.cpu_times(), time.monotonic()
    times, points, _ = follow(rig, start, cycles * period, {})
    used = process.cpu_times()
    wall = time.monotonic() - wall
    settled = times > 1.0
    curve = np.array([ideal(np.array(start.position), t) for t in times])
    errors = np.linalg.norm(points - curve, axis=1)[settled]
    lags = np.arange(0.0, 0.4, 0.005)
    delayed = [
        np.mean((points[settled, 1] - start.position[1] - AMPLITUDE * np.sin(OMEGA * (t))) ** 2)
        for t in ((times[settled] - lag) for lag in lags)
    ]
    lag = float(lags[int(np.argmin(delayed))])
    count = len(errors)
    report.add("fci.tracking_rms_mm", 1e3 * float(np.sqrt(np.mean(errors**2))), "mm", count)
    report.add("fci.tracking_max_mm", 1e3 * float(errors.max()), "mm", count)
    report.add("fci.tracking_lag_ms", 1e3 * lag, "ms", count)
    rates = rig.rates[len(rig.rates) // 10 :]
    report.add("fci.success_rate_mean", float(np.mean(rates)), "", len(rates))
    report.add("fci.success_rate_min", float(np.min(rates)), "", len(rates))
    spent = used.user + used.system - cpu.user - cpu.system
    report.add("fci.client_cpu_pct", 100.0 * spent / wall, "%", 1)

    def soft() -> None:
        rig.set_gains(translational_stiffness=(1500.0,) * 3, translational_damping=(77.0,) * 3)

    def wide() -> None:
        rig.set_gains(error_clip=(0.02, 0.02, 0.02, 0.1, 0.1, 0.1))

    quiet = [(index + 0.77) * period / 2.0 for index in range(1, 2 * cycles - 1)]
    usual = jumps(times, points, lag, quiet)
    changes = (soft, rig.set_gains, wide, rig.set_gains)
    events = {(index + 0.77) * period / 2.0: change for index, change in enumerate(changes * 2)}
    times, points, over = follow(rig, start, (len(events) + 1) * period / 2.0, events)
    found = jumps(times, points, lag, over)
    report.add("fci.gain_change_jump_mm", 1e3 * max(found, default=math.nan), "mm", len(found))
    report.add("fci.no_change_jump_mm", 1e3 * max(usual, default=math.nan), "mm", len(usual))


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--seed", type=int, default=0, help="part of every figure")
    parser.add_argument("--cycles", type=int, default=4, help="of the sinusoid, 4 s each")
    options = parser.parse_args()
    report = Report(options.seed, options.json)
    try:
        rig = Rig()
    except (SimulatedRobotError, DriverError) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        measure(rig, options.cycles, report)
    except DriverError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        rig.close()
    report.add("fci.load_average", os.getloadavg()[0], "", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
