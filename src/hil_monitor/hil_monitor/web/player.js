// Playback of recorded episodes.

import { t } from "./i18n.js";

const element = (id) => document.getElementById(id);
let recorded = new Map();
let episode = null;
let timer = null;

export async function look() {
  const answer = await fetch("/episodes");
  if (answer.ok) recorded = new Map((await answer.json()).map((e) => [e.key, e]));
}

export const keyOf = (e) => `${e.session.slice(0, 8)}-${String(e.episode).padStart(5, "0")}`;
export const has = (e) => recorded.has(keyOf(e));

export function open(which) {
  episode = recorded.get(keyOf(which));
  const cameras = Object.keys(episode.cameras);
  element("player-camera").replaceChildren(...cameras.map((name) => new Option(name, name)));
  element("player-export").href = `/episodes/${episode.key}.zip`;
  element("player").hidden = false;
  choose();
  element("player-play").focus();
}

const frames = () => episode.cameras[element("player-camera").value];

function choose() {
  stop();
  element("player-position").max = frames().length - 1;
  element("player-position").value = 0;
  show();
}

async function show() {
  const number = Number(element("player-position").value);
  const answer = await fetch(`/episodes/${episode.key}/${element("player-camera").value}/${number}.jpg`);
  if (!answer.ok) return;
  const picture = await createImageBitmap(await answer.blob());
  const canvas = element("player-picture");
  canvas.width = picture.width;
  canvas.height = picture.height;
  canvas.getContext("2d").drawImage(picture, 0, 0);
}

// Each picture when it came, in the time of the episode.
function play() {
  if (timer) return stop();
  const all = frames();
  if (Number(element("player-position").value) >= all.length - 1) element("player-position").value = 0;
  const first = all[Number(element("player-position").value)][0];
  const began = performance.now();
  element("player-play").textContent = t("pause");
  timer = setInterval(() => {
    const now = first + (performance.now() - began) / 1e3;
    let number = Number(element("player-position").value);
    while (number + 1 < all.length && all[number + 1][0] <= now) number += 1;
    if (number !== Number(element("player-position").value)) {
      element("player-position").value = number;
      show();
    }
    if (number + 1 >= all.length) stop();
  }, 30);
}

function stop() {
  clearInterval(timer);
  timer = null;
  element("player-play").textContent = t("play");
}

export function begin() {
  element("player-camera").addEventListener("change", choose);
  element("player-position").addEventListener("input", () => { stop(); show(); });
  element("player-play").addEventListener("click", play);
  element("player-close").addEventListener("click", () => { stop(); element("player").hidden = true; });
}
