"use strict";
// Exchange the numbers of the page in place when there are new ones. Without scripts, the page reloads itself.
const minInterval = 2000; // milliseconds between two exchanges, so that people can read the numbers
const retryAfter = 5000; // milliseconds until a refused stream is requested again

const element = (id) => document.getElementById(id);
const page = location.origin + location.pathname + location.search;
let paused = false;
let last = Date.now();
let timer;
let waiting = false; // new numbers are not shown yet, because the page is hidden or paused

function exchange(text) {
  const live = element("live");
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const next = fresh.getElementById("live");
  if (!next) throw new Error("not the status page");
  const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
  const kept = Array.from(live.querySelectorAll("[id]"), ({ id, open, scrollLeft }) => [id, open, scrollLeft]);
  if (next.dataset.news !== live.dataset.news) element("news").textContent = next.dataset.news;
  live.replaceWith(document.adoptNode(next));
  for (const [id, open, scrollLeft] of kept) {
    if (element(id)) Object.assign(element(id), { open, scrollLeft });
  }
  if (focused) element(focused)?.focus({ preventScroll: true });
  document.title = fresh.title;
}

async function refresh() {
  timer = undefined;
  waiting = paused || document.hidden || document.getSelection()?.isCollapsed === false;
  if (waiting) return;
  last = Date.now();
  try {
    const response = await fetch(page, { cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    exchange(await response.text());
    element("away").hidden = true;
  } catch {
    element("away").hidden = false;
  }
}

function scheduleRefresh() {
  timer ??= setTimeout(refresh, Math.max(0, last + minInterval - Date.now()));
}

function refreshIfWaiting() {
  if (waiting) scheduleRefresh();
}

function listen() {
  const stream = new EventSource("live");
  stream.addEventListener("published", scheduleRefresh);
  stream.onerror = () => {
    scheduleRefresh(); // that request shows whether the daemon is away
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, retryAfter);
  };
}

element("pause").hidden = false;
element("pause").addEventListener("click", ({ target }) => {
  paused = !paused;
  target.setAttribute("aria-pressed", paused);
  refreshIfWaiting();
});
document.addEventListener("visibilitychange", refreshIfWaiting);
document.addEventListener("selectionchange", refreshIfWaiting);
listen();
