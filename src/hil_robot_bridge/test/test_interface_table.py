"""hil_sim and the driver ros2_control against one table of the robot's ROS interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy, QoSReliabilityPolicy

from hil_common.lifecycle import HilNode
from hil_common.testing import Ros
from hil_robot_bridge.drivers.ros2_control import Ros2Control, Ros2ControlConfig
from hil_robot_bridge.fibers import Timeouts
from hil_sim.sim_node import SimNode

TABLE = yaml.safe_load(Path(__file__).with_name("franka_ros2_interface.yaml").read_text())
ACTION_SERVICES = {"send_goal": "_SendGoal", "get_result": "_GetResult"}


def quality(info: Any) -> str:
    """QoS of an end of a topic as the table names it."""
    profile = info.qos_profile
    if profile.durability == QoSDurabilityPolicy.TRANSIENT_LOCAL:
        return "latched"
    reliable = profile.reliability == QoSReliabilityPolicy.RELIABLE
    return "reliable" if reliable else "best_effort"


def services() -> dict[str, str]:
    """Every service of the table, those behind actions included."""
    found = dict(TABLE["services"])
    for name, kind in TABLE["actions"].items():
        for part, suffix in ACTION_SERVICES.items():
            found[f"{name}/_action/{part}"] = kind + suffix
        found[f"{name}/_action/cancel_goal"] = "action_msgs/srv/CancelGoal"
    return found


@pytest.fixture
def observer(ros: Ros) -> Any:
    ros.start(SimNode, task="reach", pace="realtime", cameras=("side",))
    return ros.node("observer")


def test_the_simulator_offers_the_robots_interface(ros: Ros, observer: Node) -> None:
    for topic, expected in TABLE["published"].items():
        infos = ros.wait_for(lambda t=topic: observer.get_publishers_info_by_topic(t), what=topic)
        assert [[info.topic_type, quality(info)] for info in infos] == [expected], topic
    for topic, expected in TABLE["subscribed"].items():
        infos = ros.wait_for(
            lambda t=topic: observer.get_subscriptions_info_by_topic(t), what=topic
        )
        assert [[info.topic_type, quality(info)] for info in infos] == [expected], topic
    wanted = services()
    ros.wait_for(lambda: wanted.keys() <= dict(observer.get_service_names_and_types()).keys())
    there = dict(observer.get_service_names_and_types())
    for name, kind in wanted.items():
        assert there[name] == [kind], name
    for name in TABLE["not_simulated"]:
        assert name not in there, f"{name} is simulated now: move it up in the table"


def test_the_driver_uses_the_robots_interface_only(ros: Ros) -> None:
    """Names, types, and QoS that can meet; no simulator is there to be adapted to."""
    node: Any = ros.add(HilNode("robot_bridge", context=ros.context))
    observer = ros.node("observer")
    timeouts = Timeouts()
    driver = Ros2Control(node, Ros2ControlConfig(), "base", False, timeouts)
    done = ros.executor.create_task(driver.connect, lambda _: None, lambda _: None)
    ros.result(done)
    name, space = "robot_bridge", "/"
    own = ("/rosout", "/parameter_events", "/diagnostics", "/robot_bridge/")

    def read() -> list[tuple[str, list[str]]]:
        return [
            (topic, kinds)
            for topic, kinds in observer.get_subscriber_names_and_types_by_node(name, space)
            if not topic.startswith(own) and "/_action/" not in topic
        ]

    ros.wait_for(lambda: len(read()) >= 6)
    ros.wait_for(lambda: observer.get_subscriptions_info_by_topic("/current_pose"))
    for topic, kinds in read():
        kind, offered = TABLE["published"][topic]
        assert kinds == [kind], topic
        asked = quality(observer.get_subscriptions_info_by_topic(topic)[0])
        assert asked == "best_effort" or asked == offered, topic
    for topic, kinds in observer.get_publisher_names_and_types_by_node(name, space):
        if not topic.startswith(own):
            assert [*kinds, quality(observer.get_publishers_info_by_topic(topic)[0])] == (
                TABLE["subscribed"][topic]
            ), topic
    known = services()
    called = observer.get_client_names_and_types_by_node(name, space)
    assert called
    for service, kinds in called:
        assert [known[service]] == kinds, service
    driver.close()
