"""ROS helpers: QoS profiles, lifecycle base, parameters, tensor and image conversion."""
