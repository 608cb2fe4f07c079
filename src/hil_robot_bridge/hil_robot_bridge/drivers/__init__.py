"""Drivers: what speaks to the robot's controller."""
