"""Cartesian impedance bridge: command gate, drivers, gripper, recovery, state."""
