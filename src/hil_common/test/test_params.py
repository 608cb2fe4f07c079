from dataclasses import dataclass

import pytest
from rclpy.node import Node

from hil_common.params import NodeParams, ParameterError, declare, describe, override, param
from hil_common.testing import Ros


@dataclass(frozen=True)
class ArmParams(NodeParams):
    rate_hz: float = param(50.0, "rate", low=1.0, high=100.0)
    pace: str = param("realtime", "how time moves", choices=("realtime", "lockstep"))
    depth: int = param(3, "queue depth", low=1)
    box: tuple[float, ...] = param((0.1, 0.2), "box")
    cameras: tuple[str, ...] = param((), "cameras")


def declared(ros: Ros, **values):
    overrides = [override(name, value) for name, value in values.items()]
    node = ros.node("arm", parameter_overrides=overrides)
    return node, declare(node, ArmParams)


def test_defaults_and_overrides(ros):
    node, params = declared(ros, rate_hz=20.0, cameras=("wrist", "side"))
    assert params == ArmParams(rate_hz=20.0, cameras=("wrist", "side"))
    assert node.get_parameter("rate_hz").value == 20.0
    assert list(node.get_parameter("box").value) == [0.1, 0.2]


def test_whole_number_is_a_float(ros):
    assert declared(ros, rate_hz=20)[1].rate_hz == 20.0
    assert declared(ros, box=(1, 2))[1].box == (1.0, 2.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate_hx": 20.0}, ["'rate_hx'", "'arm'", "did you mean 'rate_hz'?"]),
        ({"zzz": 1}, ["'zzz'", "known: ", "pace"]),
        ({"rate_hz": "fast"}, ["'rate_hz'", "float", "'fast'"]),
        ({"rate_hz": 1000.0}, ["'rate_hz'", "at most 100.0"]),
        ({"rate_hz": float("nan")}, ["'rate_hz'", "at least"]),
        ({"depth": 0}, ["'depth'", "at least 1"]),
        ({"depth": True}, ["'depth'", "int", "bool"]),
        ({"pace": "slow"}, ["'pace'", "realtime, lockstep", "'slow'"]),
        ({"box": 3.0}, ["'box'"]),
    ],
)
def test_wrong_override_is_named(ros, values, words):
    with pytest.raises(ParameterError) as error:
        declared(ros, **values)
    for word in words:
        assert word in str(error.value)


def test_file_is_named(ros, tmp_path, monkeypatch):
    path = tmp_path / "arm.yaml"
    path.write_text("arm:\n  ros__parameters:\n    rate_hx: 20.0\n")
    arguments = ["--ros-args", "--params-file", str(path)]
    monkeypatch.setattr("sys.argv", ["arm", *arguments])
    node = Node("arm", context=ros.context, cli_args=arguments)
    ros.add(node)
    with pytest.raises(ParameterError, match=str(path)):
        declare(node, ArmParams)


def test_describe_lists_every_parameter():
    rows = {name: (kind, default, doc) for name, kind, default, doc in describe(ArmParams)}
    assert rows["rate_hz"] == ("float", "50.0", "rate (1.0 to 100.0)")
    assert rows["cameras"][0] == "str[]"
    assert "one of realtime, lockstep" in rows["pace"][2]
    assert "autostart" in rows
