from setuptools import setup

package = "hil_sim"

setup(
    name=package,
    version="0.1.0",
    packages=[package, f"{package}.fci"],
    package_data={package: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package}"]),
        (f"share/{package}", ["package.xml"]),
    ],
    zip_safe=False,
    license="Apache-2.0",
    description="MuJoCo world with the ROS interface of franka_ros2 and its impedance controller",
    entry_points={
        "console_scripts": [
            "sim_node = hil_sim.sim_node:main",
            "fci_sim_node = hil_sim.fci.fci_sim_node:main",
        ],
    },
)
