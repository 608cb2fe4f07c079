"""A simulated FR3 that speaks the robot's own protocol (FCI), with a task's scene around it."""
