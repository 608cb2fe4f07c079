from setuptools import setup

package = "hil_actor"

setup(
    name=package,
    version="0.1.0",
    packages=[package],
    package_data={package: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package}"]),
        (f"share/{package}", ["package.xml"]),
    ],
    zip_safe=False,
    license="Apache-2.0",
    description="RobotEnv over the graph, the control loop, intervention, step stream",
    entry_points={
        "console_scripts": [
            "actor_node = hil_actor.actor_node:main",
        ],
    },
)
