from setuptools import setup

package = "hil_monitor"

setup(
    name=package,
    version="0.1.0",
    packages=[package],
    package_data={package: ["py.typed", "web/*", "web/vendor/*"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{package}"]),
        (f"share/{package}", ["package.xml"]),
    ],
    zip_safe=False,
    license="Apache-2.0",
    description="Operator console: a web page with cameras, state, prompts, controls and curves",
    entry_points={"console_scripts": ["monitor_node = hil_monitor.monitor_node:main"]},
)
