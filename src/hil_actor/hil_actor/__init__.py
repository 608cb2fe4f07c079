"""RobotEnv over the graph, the control loop, intervention, step stream."""

import gymnasium

gymnasium.register(
    "hil_actor/RobotEnv-v0",
    entry_point="hil_actor.env:RobotEnv",
    nondeterministic=True,
)
