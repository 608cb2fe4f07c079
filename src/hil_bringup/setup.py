from glob import glob

from setuptools import setup

package = "hil_bringup"
share = f"share/{package}"
# launch and config are links to the folders at the top of the repository.
folders = ("launch", *sorted(glob("config/*")))

setup(
    name=package,
    version="0.1.0",
    packages=[package, f"{package}.cli"],
    package_data={package: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package}"]),
        (share, ["package.xml"]),
        *((f"{share}/{folder}", sorted(glob(f"{folder}/*.*"))) for folder in folders),
    ],
    zip_safe=False,
    license="Apache-2.0",
    description="Graph description, launch, configuration, CLI, hil_manager",
    entry_points={
        "console_scripts": [
            "manager_node = hil_bringup.manager_node:main",
        ],
    },
)
