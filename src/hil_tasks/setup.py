from setuptools import setup

package = "hil_tasks"

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
    entry_points={
        "hil_tasks": [
            "reach = hil_tasks.reach:Reach",
            "peg_insert = hil_tasks.peg_insert:PegInsert",
            "pick_lift = hil_tasks.pick_lift:PickLift",
        ],
    },
    description="Task definitions: spaces, frames, limits, reset, reward, scene. No ROS",
)
