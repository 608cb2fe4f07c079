// The connection for state, commands and input; it comes back by itself.

const handlers = new Map();
let socket = null;
let count = 0;
let wait = 500;

export const on = (kind, handler) => handlers.set(kind, handler);
export const connected = () => socket !== null && socket.readyState === WebSocket.OPEN;

export function url(path) {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
}

export function send(request) {
  if (!connected()) return 0;
  count += 1;
  socket.send(JSON.stringify({ id: count, ...request }));
  return count;
}

export function connect() {
  socket = new WebSocket(url("/ws"));
  socket.onopen = () => { wait = 500; };
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    handlers.get(message.kind)?.(message);
  };
  socket.onclose = (event) => {
    handlers.get("closed")?.(event);
    if (event.code === 4403 || event.code === 1006) probe();
    setTimeout(connect, wait);
    wait = Math.min(2 * wait, 4000);
  };
}

// A console that was started anew may want the token again.
async function probe() {
  try {
    const answer = await fetch("/", { redirect: "manual" });
    if (answer.type === "opaqueredirect") location.replace("/login");
  } catch { /* not there: the next attempt tells */ }
}
