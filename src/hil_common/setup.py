from setuptools import setup

package = "hil_common"

setup(
    name=package,
    version="0.1.0",
    packages=[package],
    package_data={package: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package}"]),
        (f"share/{package}", ["package.xml", "config/fastdds_profile.xml"]),
    ],
    zip_safe=False,
    license="Apache-2.0",
    description="ROS helpers: QoS, lifecycle base, parameters, tensor and image conversion",
)
