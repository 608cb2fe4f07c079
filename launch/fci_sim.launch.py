"""The graph `fci_sim` (see hil_bringup.graph); `--show-args` lists its arguments."""

from hil_bringup.launching import launch_description
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Called by `ros2 launch hil_bringup fci_sim.launch.py key:=value ...`."""
    return launch_description("fci_sim")
