"""Takes the pictures of the console for the documentation: docs/images/console*.png.

    python docs/make_screenshots.py [--steps 1500]

The simulation learns peg insertion with the scripted operator while a real headless Chromium looks
at the console. Needs Chromium; takes minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src" / "hil_monitor" / "test"))

import yaml
from _graph import Client, Setting, running
from browser import Tab, browser
from console import find_console

from hil_common.prompts import Asker
from hil_interfaces.action import RunEpisodes

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"


def main() -> int:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1500, help="training steps until then")
    chosen = parser.parse_args()
    demo = yaml.safe_load((ROOT / "config" / "graphs" / "demo.yaml").read_text())
    parameters = {node: dict(content["ros__parameters"]) for node, content in demo.items()}
    parameters["monitor"] = {"port": 0, "keep_episodes": 20}
    setting = Setting({"task": "peg_insert"}, parameters, arguments={"monitor": "true"})
    with (
        tempfile.TemporaryDirectory() as folder,
        running(setting, 0, Path(folder)) as client,
        browser("--window-size=1440,1000") as tab,
    ):
        address = f"http://127.0.0.1:{find_console(client)}/"
        client.run(RunEpisodes.Goal(mode="demo", episodes=3, count_successes=True), lambda: None)
        client.run(RunEpisodes.Goal(mode="train", max_steps=chosen.steps), lambda: None)
        tab.open(address)
        looker = threading.Thread(target=take_pictures, args=[tab, client])
        looker.start()
        while looker.is_alive():
            client.run(RunEpisodes.Goal(mode="train", max_steps=100, seed=1), lambda: None)
    return 0


def take_pictures(tab: Tab, client: Client) -> None:
    """While the graph runs."""
    tab.screen(1440, 1000)
    tab.wait("hil.points().length === 4 && hil.statistics().every((s) => s.frames > 5)")
    tab.wait("document.querySelector('#state').dataset.state === 'policy'")
    tab.picture(IMAGES / "console.png")
    tab.wait("document.querySelector('#state').dataset.state === 'operator'")
    tab.picture(IMAGES / "console_operator.png")
    asker = Asker(client.node)
    asker.ask("Was the episode a success?", ["yes", "no"], "no", 600.0, lambda *_: None)
    tab.js(
        "(() => { const s = document.querySelector('#language'); s.value = 'zh';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    tab.screen(390, 844, touch=True)
    tab.wait("document.querySelector('.prompt')")
    tab.picture(IMAGES / "console_zh.png")


if __name__ == "__main__":
    sys.exit(main())
