// The console: what arrives is shown, what is pressed is sent.

import { connect, on, send } from "./net.js";
import { language, setLanguage, t, translate, words } from "./i18n.js";
import { setCameras, statistics } from "./tiles.js";
import * as teleop from "./teleop.js";
import * as charts from "./charts.js";
import * as player from "./player.js";

const ROWS = 30;
const PROMPT_DELAY = 600; // ms: a click that was meant for what lies under a new question
const element = (id) => document.getElementById(id);
const episodes = new Map();
let training = [];
let features = { input: false, labels: false, recorded: false };
let me = "";
let prompts = [];
let shownPrompts = "";
let newest = null;
let slowly = null;

// ------------------------------------------------------------------------------- what arrives

on("hello", (message) => {
  me = message.you;
  episodes.clear();
  training = [];
  element("link").textContent = t("connected");
});

on("closed", () => {
  teleop.lose("lost_connection");
  element("link").textContent = t("lost_console");
  showState({ state: "lost", reason: t("lost_console") });
});

on("live", (message) => {
  newest = message;
  showState(message.control);
  const actor = message.actor;
  element("episode-number").textContent = message.timeline.length ? actor.episode : "–";
  element("episode-step").textContent = message.timeline.length ? actor.step : "–";
  element("episode-time").textContent = minutes(message.episode_s);
  element("mode").textContent = actor.mode ? t(actor.mode) : "";
  element("release").disabled = !message.stopped;
  setCameras(message.cameras);
  showPrompts(message.prompts);
  showTimeline(message.timeline);
  showRobots(message.robots);
  if (features.input && !teleop.driving()) {
    element("take").disabled = message.driver !== "" && message.driver !== me;
  }
});

on("slow", (message) => {
  slowly = message;
  features = message.features;
  element("input").hidden = !features.input;
  element("no-input").hidden = features.input;
  element("no-labels").hidden = features.labels;
  for (const id of ["success", "fail", "undo"]) element(id).disabled = !features.labels;
  element("manager").textContent = message.manager;
  showLearner(message.learner);
  showAdvice(message.advice);
  showNodes(message.nodes);
});

on("history", async (message) => {
  if (message.since === 0) { episodes.clear(); training = []; }
  for (const e of message.episodes) episodes.set(`${e.session}/${e.episode}`, e);
  training.push(...message.training);
  charts.draw([...episodes.values()], training);
  if (features.recorded) await player.look();
  showEpisodes();
});

on("reply", (message) => {
  if (message.do === "take") return teleop.takeAnswer(message);
  if (message.do === undefined && message.ok === false && !teleop.driving()) return;
  const what = t(`did_${message.do}`);
  element("said").textContent = message.ok ? `${what}: ${t("ok")}` : `${what}: ${words(message.text)}`;
});

// ---------------------------------------------------------------------------------- shown

function showState(control) {
  const box = element("state");
  put("state-word", t(`state_${control.state}`));
  put("state-reason", words(control.reason));
  if (box.dataset.state !== control.state) box.dataset.state = control.state;
}

// Only what changes: a live region that is written again is read out again.
function put(id, text) {
  const target = element(id);
  if (target.textContent !== text) target.textContent = text;
}

function minutes(seconds) {
  if (seconds === null) return "0:00";
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function showPrompts(now) {
  prompts = now;
  const key = language() + now.map((p) => p.id).join();
  if (key !== shownPrompts) {
    shownPrompts = key;
    element("prompts").replaceChildren(...now.map(promptBox));
    element("prompts").querySelector("button")?.focus();
  }
  for (const prompt of now) {
    const left = document.getElementById(`left-${prompt.id}`);
    if (left) left.textContent = t("default_in", { choice: words(prompt.default), s: Math.ceil(prompt.remaining) });
  }
}

function promptBox(prompt, index) {
  const box = make("div", "", "prompt");
  const buttons = make("div", "", "buttons");
  prompt.choices.forEach((choice, number) => {
    const button = make("button");
    button.append(make("span", words(choice)));
    if (index === 0 && number < 9) button.dataset.key = number + 1;
    button.addEventListener("click", () => send({ do: "answer", question: prompt.id, choice }));
    buttons.append(button);
  });
  const left = make("span", "", "quiet");
  left.id = `left-${prompt.id}`;
  left.setAttribute("aria-live", "off");
  setTimeout(() => { box.dataset.ready = ""; }, PROMPT_DELAY);
  box.append(make("b", words(prompt.text)), make("div", prompt.node, "quiet"), buttons, left);
  return box;
}

function showTimeline(tracks) {
  const rows = tracks.map((track) => {
    const row = make("div", "", "track");
    const bar = make("div");
    for (const bout of track.bouts) {
      const part = make("span", "", bout.who);
      part.style.flexGrow = bout.steps;
      bar.append(part);
    }
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", track.bouts.map((b) => `${t(b.who)} ${b.steps}`).join(", "));
    row.append(make("span", `${track.number}`), bar);
    return row;
  });
  element("timeline").replaceChildren(...rows);
}

function rows(target, pairs) {
  const parts = pairs.flatMap(([name, value]) => [make("dt", t(name)), make("dd", value)]);
  element(target).replaceChildren(...parts);
}

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);

function showLearner(learner) {
  if (!learner) return rows("learner", [["phase", t("not_heard")]]);
  put("run", learner.run_id);
  const phase = learner.waiting_for ? `${t(learner.phase)}: ${learner.waiting_for}` : t(learner.phase);
  rows("learner", [
    ["phase", learner.age > 5 ? `${t("silent_for")} ${learner.age} s` : phase],
    ["speed", `${learner.updates_per_s.toFixed(1)} ${t("updates_per_s")}`],
    ["updates", `${learner.updates}`],
    ["env_steps", `${learner.env_steps}`],
    ["policy_version", `${learner.policy_version} (${t("acting")} ${newest?.actor.policy_version ?? "–"})`],
    ["policy_age", `${Math.round(learner.policy_age)} s`],
    ["success", percent(learner.success_rate)],
    ["driven", percent(learner.intervention_rate)],
  ]);
}

function showRobots(robots) {
  rows("robot", robots.flatMap((robot) => [
    [robot.arm || "mode", `${words(robot.mode)} ${robot.text}`],
    ["force", `${robot.force.toFixed(1)} N`],
    ["compliance", robot.compliance || "–"],
    ["recoveries", `${robot.recoveries}`],
  ]));
}

function showAdvice(advice) {
  const boxes = advice.map((a) => {
    const figures = Object.fromEntries(Object.entries(a.figures).map(([k, v]) =>
      [k, ["episodes", "wanted"].includes(k) ? v : percent(v)]));
    return make("p", t(`advice_${a.key}`, figures), "advice");
  });
  element("advice").replaceChildren(...boxes);
}

function showNodes(nodes) {
  const open = new Set([...document.querySelectorAll(".node details[open]")].map((d) => d.dataset.name));
  element("nodes").replaceChildren(...nodes.map((node) => {
    const row = make("div", "", "node");
    row.dataset.level = node.level;
    const text = node.level === 3 ? `${t("silent_for")} ${node.age} s` : node.text;
    const details = make("details");
    details.dataset.name = node.name;
    details.open = open.has(node.name);
    const values = Object.entries(node.values).map(([k, v]) => `${k}: ${v}`).join("; ");
    details.append(make("summary", t("details")), make("span", values));
    row.append(make("b", node.name), make("span", text === "ok" ? t("level_0") : `${t(`level_${node.level}`)}: ${text}`), details);
    return row;
  }));
}

function showEpisodes() {
  const last = [...episodes.values()].slice(-ROWS).reverse();
  element("episodes").replaceChildren(...last.map((e) => {
    const row = make("tr");
    const won = e.label ?? e.success;
    const result = e.interrupted ? t("interrupted") : won ? t("success") : t("fail");
    const cells = [e.episode, t(e.mode), e.steps, e.episode_return.toFixed(2),
      e.label === null ? result : `${result} (${t("labelled")})`, percent(e.intervened_steps / Math.max(1, e.steps))];
    row.append(...cells.map((text) => make("td", text)));
    const actions = make("td");
    if (features.recorded && player.has(e)) {
      const button = make("button", t("play"));
      button.addEventListener("click", () => player.open(e));
      actions.append(button);
    }
    row.append(actions);
    return row;
  }));
}

// --------------------------------------------------------------------------------- pressed

const commands = {
  stop: () => send({ do: "stop" }),
  release: () => send({ do: "release_stop" }),
  recover: () => send({ do: "recover" }),
  retry: () => send({ do: "retry" }),
  pause: () => send({ do: "pause" }),
  resume: () => send({ do: "resume" }),
  reset: () => send({ do: "reset" }),
  abort: () => send({ do: "abort" }),
  success: () => label(true),
  fail: () => label(false),
  undo: () => send({ do: "undo" }),
};

function label(success) {
  const last = [...episodes.values()].at(-1);
  if (last && features.labels) send({ do: "label", session: last.session, episode: last.episode, success });
}

const shortcuts = { KeyP: commands.pause, KeyO: commands.resume, KeyT: teleop.take, KeyY: commands.success,
  KeyN: commands.fail, KeyU: commands.undo };

const TYPING = "input:not([type=checkbox]), select, textarea";

addEventListener("keydown", (event) => {
  if (!element("shortcuts").checked || event.target.matches(TYPING)) return;
  if (event.code === "Delete") commands.stop();
  else if (event.code === "Escape" && teleop.driving()) teleop.give();
  else if (/^Digit[1-9]$/.test(event.code) && prompts.length) {
    const choice = prompts[0].choices[Number(event.code.at(-1)) - 1];
    if (choice !== undefined) send({ do: "answer", question: prompts[0].id, choice });
  } else if (!teleop.keyDown(event)) {
    if (teleop.driving() || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!(event.code in shortcuts)) return;
    shortcuts[event.code]();
  }
  event.preventDefault();
});
addEventListener("keyup", teleop.keyUp);

for (const [id, command] of Object.entries(commands)) element(id).addEventListener("click", command);
element("start").addEventListener("submit", (event) => {
  event.preventDefault();
  send({ do: "run", mode: element("start-mode").value, episodes: Number(element("start-episodes").value) });
});
element("shortcuts").addEventListener("change", (event) => {
  document.body.classList.toggle("no-shortcuts", !event.target.checked);
});
element("language").value = language();
element("language").addEventListener("change", (event) => {
  setLanguage(event.target.value);
  translate(document);
  if (slowly) { showLearner(slowly.learner); showAdvice(slowly.advice); showNodes(slowly.nodes); }
  charts.draw([...episodes.values()], training);
  showEpisodes();
});

translate(document);
teleop.begin();
player.begin();
connect();
window.hil = { statistics, points: charts.points, episodes: () => [...episodes.values()] };
