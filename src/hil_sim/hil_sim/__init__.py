"""MuJoCo world with the ROS interface of franka_ros2 and its impedance controller."""
