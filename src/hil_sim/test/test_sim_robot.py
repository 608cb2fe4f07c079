"""The robot's software stack without ROS: recovery order, controllers, parameters, URDF, steps."""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import hil_tasks
from hil_sim import crisp, ledger, robot, urdf
from hil_sim.ledger import Ledger
from hil_sim.lockstep import CarriedOut
from hil_sim.pacing import Pacer
from hil_sim.robot import BEST_EFFORT, HARDWARE, IMPEDANCE, STRICT, Robot
from hil_sim.world import World
from hil_tasks.geometry import Pose


@pytest.fixture
def world():
    return World(hil_tasks.load("reach"))


def test_recovery_takes_three_steps_in_order(world):
    changes = []
    arm = Robot(world, lambda: changes.append(1))
    assert arm.mode == robot.MODE_MOVE and arm.controlled
    arm.fail("cartesian_reflex")
    assert changes and world.braked
    assert arm.mode == robot.MODE_REFLEX and arm.errors == ("cartesian_reflex",)
    assert arm.hardware == "unconfigured" and arm.controllers[IMPEDANCE] == "inactive"
    # Out of order: nothing works.
    assert "recover first" in arm.set_hardware(HARDWARE, "active").reason
    assert "is unconfigured" in arm.switch([IMPEDANCE], [], STRICT).reason
    assert arm.recover().ok
    assert arm.mode == robot.MODE_IDLE and arm.last_errors == ("cartesian_reflex",)
    assert not arm.switch([IMPEDANCE], [], STRICT).ok and world.braked
    assert arm.set_hardware(HARDWARE, "active").ok
    assert arm.mode == robot.MODE_IDLE
    assert arm.switch([IMPEDANCE], [], STRICT).ok
    assert arm.mode == robot.MODE_MOVE and not world.braked


def test_a_fault_of_the_world_is_taken_over(world):
    arm = Robot(world)
    world.raise_fault("joint_velocity_violation")
    arm.poll()
    assert arm.errors == ("joint_velocity_violation",)
    version = arm.version
    arm.poll()
    assert arm.version == version


def test_a_person_at_the_robot_is_not_an_error(world):
    arm = Robot(world)
    arm.stop_by_hand(robot.MODE_USER_STOPPED)
    assert arm.mode == robot.MODE_USER_STOPPED and arm.errors == () and world.braked
    assert "a person holds" in arm.recover().reason
    assert "a person holds" in arm.set_hardware(HARDWARE, "active").reason
    arm.release_by_hand()
    assert arm.mode == robot.MODE_IDLE
    assert arm.recover().ok and arm.set_hardware(HARDWARE, "active").ok
    assert arm.switch([IMPEDANCE], [], STRICT).ok


def test_controllers_share_the_command_interfaces(world):
    arm = Robot(world)
    reply = arm.switch(["gravity_compensation"], [], STRICT)
    assert not reply.ok and "claimed by cartesian_impedance_controller" in reply.reason
    assert arm.switch(["gravity_compensation"], [IMPEDANCE], STRICT).ok
    assert not arm.idle and not arm.controlled and world.braked
    assert arm.switch([], ["gravity_compensation"], STRICT).ok and arm.idle
    assert "no controller 'x'" in arm.switch(["x", IMPEDANCE], [], STRICT).reason
    assert not arm.controlled
    reply = arm.switch(["x", IMPEDANCE], ["y"], BEST_EFFORT)
    assert reply.ok and arm.controlled and "'y'" in reply.reason
    assert not arm.set_hardware("other", "active").ok
    assert not arm.set_hardware(HARDWARE, "finalized").ok


def test_taking_the_hardware_down_stops_its_controllers(world):
    arm = Robot(world)
    assert arm.set_hardware(HARDWARE, "inactive").ok
    assert not arm.controlled and world.braked


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("task.k_pos_x", -1.0, "from 0.0 to 6000.0"),
        ("task.k_pos_x", float("nan"), "finite"),
        ("task.k_pos_x", "stiff", "a number"),
        ("task.k_pos_x", True, "a number"),
        ("task.error_clip.rz", 0.0, "from 1e-06"),
        ("filter.target_pose", 1.0, "0.9999"),
        ("limit_error", 1.0, "true or false"),
        ("task.k_pos_w", 1.0, "not a parameter"),
    ],
)
def test_wrong_parameters_are_refused_by_name(name, value, message):
    reason = crisp.problem(name, value)
    assert name in reason and message in reason


def test_parameters_become_gains():
    assert all(not crisp.problem(name, value) for name, value in crisp.DEFAULTS.items())
    values = crisp.DEFAULTS | {
        "task.k_rot_y": 7.0,
        "task.d_pos_z": 55.0,
        "task.error_clip.rx": 0.2,
        "limit_error": False,
    }
    gains = crisp.gains(values)
    assert gains.stiffness == pytest.approx([500, 500, 500, 30, 7, 30])
    assert gains.damping == pytest.approx([-1, -1, 55, -1, -1, -1])
    assert gains.error_clip == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.5, 0.5])
    assert not gains.limit_error


def test_urdf_is_the_simulated_arm(world):
    root = ET.fromstring(urdf.build("base"))
    links = {link.get("name") for link in root.iter("link")}
    children = {joint.find("child").get("link") for joint in root.iter("joint")}
    parents = {joint.find("parent").get("link") for joint in root.iter("joint")}
    assert links == children | {"base"} and parents <= links
    limits = [
        joint.find("limit") for joint in root.iter("joint") if joint.get("type") == "revolute"
    ]
    assert len(limits) == 7


def test_transforms_lead_to_the_tool(world):
    q = [float(value) for value in world.data.qpos[:7]]
    tree = {
        child: (parent, Pose.from_xyzw(place, turn))
        for parent, child, place, turn in urdf.transforms(q, world.gripper.width)
        + urdf.fixed_transforms("base")
    }

    def in_base(frame: str) -> Pose:
        if frame == "base":
            return Pose.identity()
        parent, pose = tree[frame]
        return in_base(parent) * pose

    assert in_base("fr3_hand_tcp").almost_equal(world.pose, 1e-6, 1e-6)
    left = world.data.xpos[world.model.body("fr3_leftfinger").id]
    assert np.allclose(in_base("fr3_leftfinger").position, left, atol=1e-6)


def test_optical_frames_look_where_the_cameras_look(world):
    cameras = {camera.name: camera for camera in world.task.scene().cameras}
    frames = {
        child: (parent, Pose.from_xyzw(place, turn))
        for parent, child, place, turn in urdf.fixed_transforms("base", list(cameras.values()))
    }
    parent, side = frames[urdf.optical_frame("side")]
    assert parent == "base"
    view = world.model.camera("side").id
    axes = world.data.cam_xmat[view].reshape(3, 3)
    assert np.allclose(side.position, world.data.cam_xpos[view])
    # MuJoCo's cameras look along -z with y up, optical frames along z with y down.
    assert np.allclose(side.rotation.as_matrix(), axes * [1.0, -1.0, -1.0], atol=1e-6)
    parent, _ = frames[urdf.optical_frame("wrist")]
    assert parent == "fr3_hand"


def test_a_step_is_remembered_by_its_identity():
    steps = CarriedOut(capacity=2)
    steps.note("a", 1)
    steps.note("", 2)
    assert steps.find("a") == 1 and steps.find("") is None and steps.find("b") is None
    steps.note("b", 2)
    steps.note("c", 3)
    assert steps.find("a") is None and steps.find("c") == 3


def test_a_ledger_goes_on_after_a_torn_line(tmp_path):
    path = tmp_path / "folder" / "ledger.jsonl"
    here = (0.5, 0.0, 0.25)
    first = Ledger(path)
    first.note("a/s/0/0", "s", 1, (1, 2), (here, here))
    first.close()
    with path.open("a") as file:
        file.write('{"life": "torn')
    second = Ledger(path)
    second.note("", "s", 3, (1, 4), (here, here))
    second.close()
    entries = list(ledger.read(path))
    assert [(e.step, e.periods, e.before, e.after) for e in entries] == [
        ("a/s/0/0", 1, 1, 2),
        ("", 3, 1, 4),
    ]
    assert entries[0].life != entries[1].life
    assert entries[0].position_after == here


def test_the_pacer_calls_and_reports_failure():
    calls, failed = threading.Event(), threading.Event()
    pacer = Pacer(calls.set, 0.001, lambda error: None, "test")
    pacer.start()
    assert calls.wait(10.0)
    pacer.stop()

    def broken() -> None:
        raise RuntimeError("broken")

    pacer = Pacer(broken, 0.001, lambda error: failed.set(), "test")
    pacer.start()
    assert failed.wait(10.0)
    pacer.stop()
