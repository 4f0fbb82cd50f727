"use strict";
// Without scripts the page reloads itself; with this one its numbers are exchanged in place when there are new ones.
const shortest = 2000; // milliseconds between two exchanges, so that people can read the numbers
const comesBack = 5000; // milliseconds after which a stream that was refused is asked for again

const part = (id) => document.getElementById(id);
const page = location.origin + location.pathname + location.search;
let paused = false;
let last = Date.now();
let timer;
let waiting = false; // there are new numbers, but the page is hidden or paused

function exchange(text) {
  const live = part("live");
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const next = fresh.getElementById("live");
  if (!next) throw new Error("not the status page");
  const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
  const kept = Array.from(live.querySelectorAll("[id]"), ({ id, open, scrollLeft }) => [id, open, scrollLeft]);
  if (next.dataset.news !== live.dataset.news) part("news").textContent = next.dataset.news;
  live.replaceWith(document.adoptNode(next));
  for (const [id, open, scrollLeft] of kept) {
    if (part(id)) Object.assign(part(id), { open, scrollLeft });
  }
  if (focused) part(focused)?.focus({ preventScroll: true });
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
    part("away").hidden = true;
  } catch {
    part("away").hidden = false;
  }
}

function soon() {
  timer ??= setTimeout(refresh, Math.max(0, last + shortest - Date.now()));
}

function lookAgain() {
  if (waiting) soon();
}

function listen() {
  const stream = new EventSource("live");
  stream.addEventListener("published", soon);
  stream.onerror = () => {
    soon(); // whether the daemon is away shows when the page is asked for
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, comesBack);
  };
}

part("pause").hidden = false;
part("pause").addEventListener("click", ({ target }) => {
  paused = !paused;
  target.setAttribute("aria-pressed", paused);
  lookAgain();
});
document.addEventListener("visibilitychange", lookAgain);
document.addEventListener("selectionchange", lookAgain);
listen();
