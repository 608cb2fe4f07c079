"""One actor's side of the transport, as a process: recorder, spool, sender, insert client.

Records made-up steps of a task, as fast as they are taken or at a rate, and prints one line of
JSON when the learner has them all. A line on standard input starts it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node

import hil_tasks
from hil_actor.control_step import Flag
from hil_actor.env import Transition
from hil_actor.insert_client import InsertClient
from hil_actor.recorder import Place, StepRecorder
from hil_actor.sender import Sender
from hil_actor.spool import Spool
from hil_actor.step_store import Stream
from hil_common import qos
from hil_interfaces.msg import Step

EPISODE = 100
WARM_UP = 50
LIMIT = 600.0
"""Seconds after which it gives up waiting for the learner."""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task-file", required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--spool", required=True)
    parser.add_argument("--actor", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="steps per s; 0: all it takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unattended", action="store_true", help="do not wait for the learner")
    chosen = parser.parse_args()
    rclpy.init()
    node = Node(f"bench_{chosen.actor}")
    result = measure(node, chosen)
    print(json.dumps(result), flush=True)
    node.destroy_node()
    rclpy.try_shutdown()


def measure(node: Node, chosen: argparse.Namespace) -> dict[str, Any]:
    """Record the steps and wait until they are acknowledged."""
    task = hil_tasks.load_file(chosen.task_file)
    fingerprint = task.spec.fingerprint()
    stream = Stream(chosen.run_id, fingerprint, chosen.actor, str(uuid.uuid4()))
    arrivals: list[tuple[float, int]] = []
    heard = threading.Condition()

    def on_exchange() -> None:
        with heard:
            arrivals.append((time.monotonic(), spool.acknowledged))
            heard.notify_all()

    def on_commit() -> None:
        sender.notify()
        with heard:
            heard.notify_all()

    spool = Spool(Path(chosen.spool), chosen.actor, on_commit=on_commit)
    client = InsertClient(node)
    sender = Sender(spool, client, stream, spool.begin(stream), on_exchange=on_exchange)
    publisher = node.create_publisher(Step, "step", qos.STEP)
    recorder = StepRecorder(
        spool,
        publisher.publish,
        fingerprint=fingerprint,
        actor_id=chosen.actor,
        session=stream.session,
        task=task.spec.name,
    )
    recorder.run_id = chosen.run_id
    transitions = make_transitions(task, chosen.seed)
    if not chosen.unattended:
        client.wait_ready(LIMIT)
    print("ready", flush=True)
    sys.stdin.readline()
    sender.start()
    wall, cpu, at = [], [], []
    began, used_before = time.monotonic(), time.process_time()
    for index in range(chosen.steps):
        with heard:
            heard.wait_for(lambda: not spool.blocked, LIMIT)
        if chosen.rate:
            time.sleep(max(0.0, began + index / chosen.rate - time.monotonic()))
        last = index % EPISODE == EPISODE - 1
        done = replace(transitions[index % len(transitions)], truncated=last)
        place = Place("train", index // EPISODE, index % EPISODE, 1)
        before, used = time.monotonic(), time.thread_time()
        recorder.record(done, place)
        cpu.append(time.thread_time() - used)
        at.append(time.monotonic())
        wall.append(at[-1] - before)
    recorded = time.monotonic()
    if chosen.unattended:
        print("recorded", flush=True)
    with heard:
        heard.wait_for(lambda: spool.acknowledged == chosen.steps, LIMIT)
    ended = time.monotonic()
    sender.stop(10.0)
    result = {
        "acknowledged": spool.acknowledged,
        "seconds": ended - began,
        "actor_cpu_s": time.process_time() - used_before,
        "catch_up_s": ended - recorded,
        "wall_ms": [1e3 * value for value in wall[WARM_UP:]],
        "cpu_ms": [1e3 * value for value in cpu[WARM_UP:]],
        "ack_ms": acknowledgement_delays(at, arrivals)[WARM_UP:],
    }
    client.close()
    spool.close(10.0)
    return result


def acknowledgement_delays(at: list[float], arrivals: list[tuple[float, int]]) -> list[float]:
    """Ms from the recording of each step to the answer that acknowledged it."""
    delays: list[float] = []
    for moment, acknowledged in arrivals:
        while len(delays) < min(acknowledged, len(at)):
            delays.append(1e3 * (moment - at[len(delays)]))
    return delays


def make_transitions(task: hil_tasks.Task, seed: int, count: int = 20) -> list[Transition]:
    """Steps with random contents; images are noise, which no compression makes smaller."""
    rng = np.random.default_rng(seed)
    spec = task.spec
    size = (spec.image_size, spec.image_size, 3)

    def observe() -> dict[str, Any]:
        values = {
            name: rng.uniform(-1.0, 1.0, tensor.shape).astype(tensor.dtype)
            for name, tensor in spec.observation.items()
        }
        images = {c: rng.integers(0, 256, size, dtype=np.uint8) for c in spec.cameras}
        return {**values, **images}

    return [
        Transition(
            stamp=time.time_ns(),
            observation=observe(),
            action=rng.uniform(-1.0, 1.0, spec.action_dim).astype(np.float32),
            proposal=rng.uniform(-1.0, 1.0, spec.action_dim).astype(np.float32),
            intervened=(False,) * len(spec.arms),
            takeover=False,
            reward=0.0,
            terminated=False,
            truncated=False,
            success=False,
            grasp_penalty=np.zeros(sum(spec.grippers), np.float32),
            flags=Flag(0),
            next_observation=observe(),
        )
        for _ in range(count)
    ]


if __name__ == "__main__":
    main()
