"""Parameters of the monitor."""

from __future__ import annotations

from dataclasses import dataclass

from hil_common.params import NodeParams, param


@dataclass(frozen=True)
class MonitorParams(NodeParams):
    """Where the console is offered, and what it shows."""

    network: str = param(
        "localhost",
        "localhost: this machine only; lan: every interface, with token and TLS",
        choices=("localhost", "lan"),
    )
    port: int = param(
        8642, "of the web server; where it is taken, or 0: any free one", low=0, high=65535
    )
    run_folder: str = param(
        "", "of the run: curves of earlier processes, recorded pictures, the TLS certificate"
    )
    arms: tuple[str, ...] = param(
        ("",), "arms that are shown; arm X has the topic X/robot_state, the single arm '' none"
    )
    cameras: tuple[str, ...] = param((), "cameras that are shown; none given: all there are")
    tile_rate_hz: float = param(30.0, "camera pictures per second at most", low=1.0, high=60.0)
    tile_size: int = param(
        640, "pixels: a larger picture is shrunk to this edge", low=32, high=4096
    )
    jpeg_quality: int = param(80, "of the camera pictures", low=10, high=95)
    keep_episodes: int = param(
        0,
        "newest episodes whose pictures are kept in run_folder, for playback; 0: none. The "
        "cameras are subscribed to all the time then, not only while somebody looks",
        low=0,
        high=1000,
    )
    input: bool = param(
        False, "publish joy: the page's keyboard, mouse and touch are the operator's device"
    )
    rest_rate_hz: float = param(
        25.0, "joy messages per second while the device is at rest", low=10.0, high=200.0
    )
