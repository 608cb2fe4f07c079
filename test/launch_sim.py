"""The graph by launch/sim.launch.py: the same graph as by `hil up sim`, through launch_testing.

test_launch.py runs this file where launch is installed; `launch_test test/launch_sim.py` does the
same by hand.
"""

import os
import sys
import tempfile
import unittest
from pathlib import Path

import launch_testing
from ament_index_python.packages import get_package_share_directory
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_testing.asserts import assertExitCodes

from hil_bringup.graph import graph
from launch import LaunchDescription

sys.path.insert(0, str(Path(__file__).parent))

from system import GENEROUS, Watch, wait_for


@launch_testing.ready_to_test_action_timeout(GENEROUS)
def generate_test_description() -> LaunchDescription:
    """Called by launch_testing."""
    file = Path(get_package_share_directory("hil_bringup")) / "launch" / "sim.launch.py"
    given = {"task": "reach", "run_dir": tempfile.mkdtemp(), "run_id": "launched"}
    included = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(file)), launch_arguments=given.items()
    )
    return LaunchDescription([included, launch_testing.actions.ReadyToTest()])


class Launched:
    """The graph, for a Watch."""

    def __init__(self) -> None:
        chosen = graph("sim")
        nodes = chosen.nodes(chosen.resolve({"task": "reach"}))
        self.managed = sorted(node.full_name for node in nodes if node.managed)
        self.wait_for = wait_for


class TestRunningGraph(unittest.TestCase):
    """While the graph runs."""

    def test_becomes_ready_and_runs_an_episode(self) -> None:
        """As it does when `hil up` has started it."""
        launched = Launched()
        with Watch(int(os.environ.get("ROS_DOMAIN_ID", "0"))) as watch:
            wait_for(lambda: watch.all_active(launched), "all nodes to be active")
            result = watch.episodes_of(launched, "demo", episodes=1, seed=11)
            wait_for(lambda: len(watch.steps) == result.steps, "the steps")
            wait_for(lambda: watch.learner.demo_steps == result.steps, "the learner's count")


@launch_testing.post_shutdown_test()
class TestEndedGraph(unittest.TestCase):
    """After launch has interrupted everything."""

    def test_everybody_ended_orderly(self, proc_info: object) -> None:
        """Exit code 0, all of them."""
        assertExitCodes(proc_info)
