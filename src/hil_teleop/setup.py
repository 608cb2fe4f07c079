from setuptools import setup

package = "hil_teleop"

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
    description="SpaceMouse, Joy and scripted expert to operator commands",
    entry_points={
        "console_scripts": [
            "spacemouse_node = hil_teleop.spacemouse_node:main",
            "teleop_node = hil_teleop.teleop_node:main",
            "scripted_expert_node = hil_teleop.scripted_expert_node:main",
        ],
    },
)
