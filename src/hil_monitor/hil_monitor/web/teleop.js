// The page as an input device: keys, pads and buttons become axes, 50 times a second and at once
// on every change. Without focus or connection it says nothing: silence means loss, and the arm holds.

import { connected, send } from "./net.js";
import { t } from "./i18n.js";

const PERIOD = 20; // ms
const START = 0.3; // a key counts for so much at once, more than any dead zone...
const RAMP = 250; // ...and fully after so many ms
const SLOW = 0.35;
const KEYS = { // [axis, sign]: x forward, y left, z up, roll, pitch, yaw
  KeyW: [0, 1], ArrowUp: [0, 1], KeyS: [0, -1], ArrowDown: [0, -1],
  KeyA: [1, 1], ArrowLeft: [1, 1], KeyD: [1, -1], ArrowRight: [1, -1],
  KeyR: [2, 1], PageUp: [2, 1], KeyF: [2, -1], PageDown: [2, -1],
  KeyJ: [3, -1], KeyL: [3, 1], KeyI: [4, 1], KeyK: [4, -1], KeyQ: [5, 1], KeyE: [5, -1],
};
const BUTTON_KEYS = { KeyC: 0, KeyV: 1, Space: 2 };

const element = (id) => document.getElementById(id);
const held = new Map(); // key -> when it was pressed
const pads = { move: [0, 0], turn: [0, 0] };
const pressed = [new Set(), new Set(), new Set()];
let timer = null;
let asked = 0;
let slow = false;

export const driving = () => timer !== null;

export function take() {
  if (driving() || asked || element("take").disabled) return;
  asked = send({ do: "take" });
}

export function takeAnswer(message) {
  asked = 0;
  if (!message.ok) return say(message.text);
  if (!document.hasFocus()) return lose("lost_focus");
  timer = setInterval(feed, PERIOD);
  element("pads").classList.remove("off");
  element("give").disabled = false;
  element("take").disabled = true;
  say(t("you_drive"));
  feed();
}

export function give() {
  if (!driving()) return;
  end();
  send({ do: "give_back" });
  say(t("given_back"));
}

// Without the person's will: the device falls silent.
export function lose(why) {
  asked = 0;
  if (!driving() && why !== "lost_focus") return;
  end();
  send({ do: "lost" });
  say(t(why));
}

function end() {
  clearInterval(timer);
  timer = null;
  held.clear();
  pads.move = [0, 0];
  pads.turn = [0, 0];
  pressed.forEach((sources) => sources.clear());
  element("pads").classList.add("off");
  element("give").disabled = true;
  element("take").disabled = false;
  document.querySelectorAll(".pad i").forEach((knob) => { knob.style.transform = ""; });
  document.querySelectorAll(".grip .pressed").forEach((b) => b.classList.remove("pressed"));
}

function say(text) {
  element("driving").textContent = text;
}

function feed() {
  if (!driving()) return;
  if (!connected()) return lose("lost_connection");
  send({ do: "input", axes: axes(performance.now()), buttons: pressed.map((s) => Number(s.size > 0)) });
}

function axes(now) {
  const values = [pads.move[1], -pads.move[0], pads.turn[1], 0, 0, -pads.turn[0]];
  for (const [key, since] of held) {
    const [axis, sign] = KEYS[key];
    const ramped = Math.min(1, START + ((1 - START) * (now - since)) / RAMP);
    values[axis] += sign * ramped * (slow ? SLOW : 1);
  }
  return values.map((value) => Math.round(1e3 * Math.max(-1, Math.min(1, value))) / 1e3);
}

// Returns whether the key was one of these.
export function keyDown(event) {
  if (!driving() || event.ctrlKey || event.metaKey || event.altKey) return false;
  slow = event.shiftKey;
  if (event.code in KEYS) {
    if (!held.has(event.code)) held.set(event.code, performance.now());
  } else if (event.code in BUTTON_KEYS) {
    pressed[BUTTON_KEYS[event.code]].add("key");
  } else return false;
  if (!event.repeat) feed();
  return true;
}

export function keyUp(event) {
  slow = event.shiftKey;
  const was = held.delete(event.code);
  const button = event.code in BUTTON_KEYS && pressed[BUTTON_KEYS[event.code]].delete("key");
  if (was || button) feed();
}

function pad(id, name) {
  const box = element(id);
  const knob = box.querySelector("i");
  const move = (event) => {
    if (!driving() || !box.hasPointerCapture(event.pointerId)) return;
    const area = box.getBoundingClientRect();
    const reach = area.width / 2;
    let x = (event.clientX - area.left - reach) / reach;
    let y = (area.top + reach - event.clientY) / reach;
    const length = Math.max(1, Math.hypot(x, y));
    pads[name] = [x / length, y / length];
    knob.style.transform = `translate(${(x / length) * reach * 0.8}px, ${(-y / length) * reach * 0.8}px)`;
    feed();
  };
  const release = () => {
    pads[name] = [0, 0];
    knob.style.transform = "";
    feed();
  };
  box.addEventListener("pointerdown", (event) => {
    if (!driving()) return take();
    box.setPointerCapture(event.pointerId);
    move(event);
  });
  box.addEventListener("pointermove", move);
  box.addEventListener("lostpointercapture", release);
}

function holdButton(id, index) {
  const button = element(id);
  const set = (down) => () => {
    if (!driving()) return;
    if (down) pressed[index].add("pointer"); else pressed[index].delete("pointer");
    button.classList.toggle("pressed", down);
    feed();
  };
  button.addEventListener("pointerdown", set(true));
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) {
    button.addEventListener(kind, set(false));
  }
}

export function begin() {
  element("take").addEventListener("click", take);
  element("give").addEventListener("click", give);
  pad("pad-move", "move");
  pad("pad-turn", "turn");
  ["close", "open", "hold"].forEach(holdButton);
  addEventListener("blur", () => driving() && lose("lost_focus"));
  addEventListener("pagehide", () => lose("lost_focus"));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && driving()) lose("lost_focus");
  });
  element("pads").classList.add("off");
}
