from setuptools import setup

package = "hil_robot_bridge"

setup(
    name=package,
    version="0.1.0",
    packages=[package, f"{package}.drivers"],
    package_data={package: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package}"]),
        (f"share/{package}", ["package.xml"]),
    ],
    zip_safe=False,
    license="Apache-2.0",
    description="Cartesian impedance bridge: command gate, drivers, gripper, recovery, state",
    entry_points={
        "console_scripts": [
            "bridge_node = hil_robot_bridge.bridge_node:main",
        ],
    },
)
