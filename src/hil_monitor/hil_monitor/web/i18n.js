// Words of the page in English and Chinese. What nodes say in words is shown as it is, unless it
// is one of the texts known here.

const EN = {
  skip: "Skip to the controls", language: "Language", questions: "Questions", cameras: "Cameras",
  no_cameras: "No camera publishes pictures.", no_picture: "no picture", controls: "Controls",
  stop: "Software stop", release: "Release stop", recover: "Recover", retry: "Retry nodes",
  no_safety: "The software stop is not a safety device. Use the robot's emergency stop.",
  pause: "Pause", resume: "Go on", reset: "Reset episode", abort: "Abort run", run: "Run",
  train: "training", demo: "demonstrations", evaluate: "evaluation",
  episodes_0: "episodes (0: until aborted)", start: "Start", last_episode: "Last episode:",
  success: "Success", fail: "Fail", undo: "Undo label", no_labels: "This graph takes no labels.",
  drive: "Take over", no_input: "Another device drives this graph (operator:=console lets this page).",
  take: "Take the controls", give: "Give back", you_drive: "You have the controls",
  given_back: "The policy drives on", lost_focus: "This page lost the focus: the arm holds. Take the controls again.",
  lost_connection: "The connection was lost: the arm holds.", pad_move: "forward, left", pad_turn: "up, turn",
  close: "Close", open: "Open", hold_button: "Hold to intervene",
  keys: "Keys: W A S D or arrows move, R F or Page keys up and down, Q E turn, I J K L tilt, Shift slow, C V gripper.",
  timeline: "Who drove", policy: "policy", operator: "operator", hold: "hold", coach: "Coaching",
  source: "After Luo et al. 2024 (HIL-SERL, arXiv 2410.21845) and its guide.", learner: "Learner", robot: "Robot",
  curves: "Learning", c_success: "Success, last 20 episodes", c_intervention: "Share of steps driven by the operator",
  c_return: "Return", c_q: "Q values", nodes: "Nodes", episodes: "Episodes", position: "Position", play: "Play",
  export: "Export", close_player: "Close", episode: "Episode", step: "step", mode: "Mode", steps: "Steps",
  return: "Return", result: "Result", driven: "Driven", shortcuts: "Keyboard shortcuts",
  console: "Operator console", token: "Token (shown where the graph was started)", enter: "Enter",
  wrong_token: "That is not the token.", connected: "connected", lost_console: "no connection to the console",
  state_policy: "POLICY", state_operator: "OPERATOR", state_hold: "HOLD", state_fault: "FAULT",
  state_reset: "RESET", state_lost: "NO LINK", default_in: "“{choice}” counts in {s} s", phase: "State",
  speed: "Speed", updates_per_s: "updates/s", updates: "Updates", env_steps: "Steps taken in",
  policy_version: "Policy version", acting: "acting with", policy_age: "Age of the policy", not_heard: "not heard yet",
  silent_for: "silent for", waiting: "waiting", training: "training", paused: "paused", stopped: "stopped",
  force: "Force", compliance: "Compliance", recoveries: "Recoveries", details: "details",
  level_0: "ok", level_1: "warning", level_2: "error", level_3: "no answer", interrupted: "interrupted",
  labelled: "labelled", ok: "done", all_episodes: "all", alone: "alone", mean_20: "mean of 20", each: "each",
  target_q: "target Q", did_stop: "Software stop", did_release_stop: "Release stop", did_recover: "Recover",
  did_retry: "Retry", did_pause: "Pause", did_resume: "Go on", did_reset: "Reset", did_abort: "Abort",
  did_run: "Start", did_answer: "Answer", did_label: "Label", did_undo: "Undo", did_undefined: "Request",
  advice_begin: "Let the policy try for a few seconds; take over where it is stuck, in danger or cannot get back, and let go soon. ({episodes} of {wanted} episodes seen)",
  advice_shorter: "Shorter corrections: one takeover lasts {bout} of an episode, and {success} of these episodes end in success. Long takeovers that carry the robot to success make the critic overestimate. Let go once the rest looks easy.",
  advice_less: "Intervene less: you drive {rate} of the steps, before it was {before}. Let the policy explore for a few seconds before you correct it, so that it meets its own mistakes.",
  advice_more: "Intervene more: the policy alone succeeds in {success} of the episodes, and you drive {rate} of the steps. Short corrections out of the states where it is stuck show it the way to the reward.",
  advice_evaluate: "The policy alone succeeds in {success} of {episodes} episodes. Take your hands off, and evaluate.",
  advice_fine: "Go on like this: you drive {rate} of the steps. Less and less is right as the policy gets better.",
};

const ZH = {
  skip: "跳到控制区", language: "语言", questions: "提问", cameras: "相机",
  no_cameras: "没有相机在发布图像。", no_picture: "无图像", controls: "控制",
  stop: "软件停止", release: "解除停止", recover: "恢复", retry: "重试节点",
  no_safety: "软件停止不是安全装置。请使用机器人的急停按钮。",
  pause: "暂停", resume: "继续", reset: "重置本回合", abort: "中止运行", run: "运行",
  train: "训练", demo: "示教", evaluate: "评估",
  episodes_0: "回合数（0：直到中止）", start: "开始", last_episode: "上一回合：",
  success: "成功", fail: "失败", undo: "撤销标注", no_labels: "当前系统不接受标注。",
  drive: "接管", no_input: "由其他设备操作（operator:=console 时可用本页面）。",
  take: "取得控制", give: "交还", you_drive: "您正在控制",
  given_back: "策略继续运行", lost_focus: "页面失去焦点：机械臂保持不动。请重新取得控制。",
  lost_connection: "连接中断：机械臂保持不动。", pad_move: "前、左", pad_turn: "上、转",
  close: "闭合", open: "张开", hold_button: "按住以干预",
  keys: "按键：W A S D 或方向键移动，R F 或翻页键升降，Q E 旋转，I J K L 倾斜，Shift 减速，C V 夹爪。",
  timeline: "控制记录", policy: "策略", operator: "操作员", hold: "保持", coach: "干预建议",
  source: "依据 Luo 等 2024（HIL-SERL，arXiv 2410.21845）及其指南。", learner: "学习器", robot: "机器人",
  curves: "学习曲线", c_success: "成功率（最近 20 回合）", c_intervention: "操作员控制的步数比例",
  c_return: "回报", c_q: "Q 值", nodes: "节点", episodes: "回合", position: "位置", play: "播放",
  export: "导出", close_player: "关闭", episode: "回合", step: "步", mode: "模式", steps: "步数",
  return: "回报", result: "结果", driven: "人工比例", shortcuts: "键盘快捷键",
  console: "操作员控制台", token: "令牌（显示在启动系统的终端）", enter: "进入",
  wrong_token: "令牌不正确。", connected: "已连接", lost_console: "与控制台的连接中断",
  state_policy: "策略", state_operator: "操作员", state_hold: "保持", state_fault: "故障",
  state_reset: "复位", state_lost: "无连接", default_in: "{s} 秒后采用“{choice}”", phase: "状态",
  speed: "速度", updates_per_s: "次更新/秒", updates: "更新次数", env_steps: "已接收步数",
  policy_version: "策略版本", acting: "执行中", policy_age: "策略已用时间", not_heard: "尚无消息",
  silent_for: "无响应", waiting: "等待", training: "训练中", paused: "已暂停", stopped: "已停止",
  force: "力", compliance: "柔顺参数", recoveries: "恢复次数", details: "详情",
  level_0: "正常", level_1: "警告", level_2: "错误", level_3: "无响应", interrupted: "中断",
  labelled: "人工标注", ok: "完成", all_episodes: "全部", alone: "无干预", mean_20: "20 回合均值", each: "每回合",
  target_q: "目标 Q", did_stop: "软件停止", did_release_stop: "解除停止", did_recover: "恢复",
  did_retry: "重试", did_pause: "暂停", did_resume: "继续", did_reset: "重置", did_abort: "中止",
  did_run: "开始", did_answer: "回答", did_label: "标注", did_undo: "撤销", did_undefined: "请求",
  advice_begin: "先让策略尝试几秒；在它卡住、有危险或无法返回时接管，并尽快放手。（已有 {episodes}/{wanted} 回合）",
  advice_shorter: "请缩短干预：一次接管平均占回合的 {bout}，其中 {success} 的回合成功。长时间把机器人带到成功会使评论家高估。剩余部分看起来容易时就放手。",
  advice_less: "请减少干预：您控制了 {rate} 的步数，之前为 {before}。先让策略探索几秒再纠正，让它遇到自己的错误。",
  advice_more: "请增加干预：策略独立成功率为 {success}，您只控制了 {rate} 的步数。在它卡住的状态做短暂纠正，为它指明获得奖励的路。",
  advice_evaluate: "策略在 {episodes} 个回合中独立成功率为 {success}。请放手并进行评估。",
  advice_fine: "请保持：您控制了 {rate} 的步数。随着策略变好，应逐渐减少。",
};

// Texts of nodes.
const KNOWN_ZH = {
  "software stop": "软件停止", "waiting for the actor": "等待执行器", "to be asked for episodes": "等待开始回合",
  "activation": "等待激活", "paused by the person": "已由操作员暂停", "hold": "保持", "moving": "运动",
  "resetting": "复位", "reflex": "反射停止", "user stopped": "用户停止", "guiding": "拖动示教", "idle": "空闲",
  "disconnected": "未连接", "success": "成功", "failure": "失败", "fail": "失败", "yes": "是", "no": "否",
  "done": "完成", "continue": "继续", "put the part back": "请把零件放回原处", "success?": "成功了吗？",
  "Was the episode a success?": "这个回合成功了吗？", "the operator's device is lost": "操作设备丢失",
  "take the controls first": "请先取得控制", "another browser has the controls": "另一个浏览器正在控制",
};

const PATTERNS_ZH = [[/^(\S+) does not respond$/, "$1 无响应"], [/^(\S+) is not there$/, "$1 不存在"]];

const ALL = { en: EN, zh: ZH };
let chosen = stored() ?? (navigator.language.startsWith("zh") ? "zh" : "en");

function stored() {
  try {
    const value = localStorage.getItem("hil-language");
    return value in ALL ? value : null;
  } catch { return null; }
}

export const language = () => chosen;

export function setLanguage(value) {
  chosen = value;
  try { localStorage.setItem("hil-language", value); } catch { /* a private window */ }
}

export function t(key, values = {}) {
  const text = ALL[chosen][key] ?? EN[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export function words(text) {
  if (chosen !== "zh") return text;
  if (text in KNOWN_ZH) return KNOWN_ZH[text];
  return PATTERNS_ZH.reduce((known, [pattern, chinese]) => known.replace(pattern, chinese), text);
}

export function translate(root) {
  root.documentElement.lang = chosen === "zh" ? "zh-CN" : "en";
  for (const each of root.querySelectorAll("[data-t]")) each.textContent = t(each.dataset.t);
  for (const each of root.querySelectorAll("[data-t-label]")) each.setAttribute("aria-label", t(each.dataset.tLabel));
}
