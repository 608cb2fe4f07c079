from setuptools import setup

package = "hil_rl"

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
    description="The learning library: agents, networks, replay, checkpoints. No ROS",
)
