// Curves of the run with uPlot; drawn anew when there is something new.

import uPlot from "./vendor/uPlot.esm.js";
import { t } from "./i18n.js";

const WINDOW = 20;
const HEIGHT = 180;
const AXIS = { stroke: "#b4c0c9", grid: { stroke: "#3a4853", width: 1 }, ticks: { stroke: "#3a4853" } };
const COLOURS = ["#8ecbff", "#ffc533", "#ff9ff0"];
const charts = new Map();

export const points = () => [...charts].map(([id, chart]) => [id, chart.data[0].length]);

export function draw(episodes, training) {
  const done = episodes.filter((e) => !e.interrupted);
  const trained = done.filter((e) => e.mode === "train");
  const x = trained.map((e, i) => e.env_steps || i + 1);
  const won = trained.map((e) => Number(e.label ?? e.success));
  const alone = trained.map((e, i) => (e.intervened_steps ? null : won[i]));
  const share = trained.map((e) => e.intervened_steps / Math.max(1, e.steps));
  show("success", [x, rolling(won), rolling(alone)], [t("all_episodes"), t("alone")], [0, 1]);
  show("intervention", [x, rolling(share), share], [t("mean_20"), t("each")], [0, 1]);
  show("return", [x, rolling(trained.map((e) => e.episode_return))], [t("mean_20")]);
  const q = training.filter((p) => p.q_mean !== null);
  show("q", [q.map((p) => p.updates), q.map((p) => p.q_mean), q.map((p) => p.target_q_mean)],
    ["Q", t("target_q")]);
}

// Mean of the last values at each position; what is null is left out.
export function rolling(values) {
  return values.map((_, i) => {
    const window = values.slice(Math.max(0, i + 1 - WINDOW), i + 1).filter((v) => v !== null);
    return window.length ? window.reduce((a, b) => a + b, 0) / window.length : null;
  });
}

function show(name, data, labels, range) {
  const id = `chart-${name}`;
  const box = document.getElementById(id);
  const last = data.slice(1).map((values) => values.findLast((v) => v !== null));
  const words = labels.map((label, i) => `${label} ${last[i] === undefined ? "–" : last[i].toPrecision(3)}`);
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", words.join(", "));
  let chart = charts.get(id);
  if (chart && chart.labels !== labels.join()) {
    chart.destroy();
    chart = null;
  }
  if (chart) return chart.setData(data);
  chart = new uPlot({
    width: Math.max(200, box.clientWidth),
    height: HEIGHT,
    scales: { x: { time: false }, y: range ? { range: [range[0] - 0.03, range[1] + 0.03] } : {} },
    axes: [AXIS, { ...AXIS, size: 45 }],
    legend: { live: false },
    cursor: { show: false },
    series: [{}, ...labels.map((label, i) => ({ label, stroke: COLOURS[i], width: 2, dash: i ? [6, 4] : [], spanGaps: true }))],
  }, data, box);
  chart.labels = labels.join();
  charts.set(id, chart);
}

addEventListener("resize", () => {
  for (const [id, chart] of charts) {
    chart.setSize({ width: Math.max(200, document.getElementById(id).clientWidth), height: HEIGHT });
  }
});
