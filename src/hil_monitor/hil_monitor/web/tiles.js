// Camera tiles: each picture is shown, then acknowledged; its age is counted on.

import { url } from "./net.js";
import { t } from "./i18n.js";

const STALE = 0.5; // s
const shown = new Map();
let socket = null;
let names = [];

export const statistics = () =>
  [...shown].map(([camera, tile]) => ({ camera, frames: tile.frames, age: age(tile) }));

export function setCameras(cameras) {
  if (cameras.join() === names.join()) return;
  names = cameras;
  document.getElementById("no-cameras").hidden = names.length > 0;
  for (const [camera, tile] of shown) {
    if (!names.includes(camera)) { tile.box.remove(); shown.delete(camera); }
  }
  for (const camera of names) if (!shown.has(camera)) shown.set(camera, make(camera));
  follow();
}

function make(camera) {
  const box = document.createElement("figure");
  const canvas = document.createElement("canvas");
  const caption = document.createElement("figcaption");
  const name = document.createElement("span");
  const aged = document.createElement("span");
  box.className = "tile stale";
  canvas.width = canvas.height = 128;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", camera);
  name.textContent = camera;
  caption.append(name, aged);
  box.append(canvas, caption);
  document.getElementById("tiles").append(box);
  return { box, canvas, aged, context: canvas.getContext("2d"), frames: 0, taken: null };
}

function follow() {
  const wanted = names.length > 0 && document.visibilityState === "visible";
  if (!wanted && socket) { socket.close(); socket = null; }
  if (!wanted || socket) return;
  const mine = socket = new WebSocket(url("/tiles"));
  mine.binaryType = "arraybuffer";
  mine.onmessage = (event) => show(mine, event.data);
  mine.onclose = () => {
    if (socket !== mine) return;
    socket = null;
    setTimeout(follow, 1000);
  };
}

async function show(from, data) {
  const received = performance.now();
  const length = new Uint8Array(data, 0, 1)[0];
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 1, length)));
  const tile = shown.get(header.c);
  if (tile) {
    const jpeg = new Blob([new Uint8Array(data, 1 + length)], { type: "image/jpeg" });
    const picture = await createImageBitmap(jpeg);
    if (tile.canvas.width !== picture.width || tile.canvas.height !== picture.height) {
      tile.canvas.width = picture.width;
      tile.canvas.height = picture.height;
    }
    tile.context.drawImage(picture, 0, 0);
    picture.close();
    tile.frames += 1;
    tile.taken = received - 1e3 * header.age;
  }
  if (from.readyState === WebSocket.OPEN) from.send(header.c);
}

const age = (tile) => (tile.taken === null ? null : (performance.now() - tile.taken) / 1e3);

function showAges() {
  for (const tile of shown.values()) {
    const seconds = age(tile);
    tile.box.classList.toggle("stale", seconds === null || seconds > STALE);
    tile.aged.textContent = seconds === null ? t("no_picture")
      : seconds < 1 ? `${Math.round(1e3 * seconds)} ms` : `${seconds.toFixed(1)} s`;
  }
}

document.addEventListener("visibilitychange", follow);
setInterval(showAges, 200);
