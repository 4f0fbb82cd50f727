"use strict";
// Without scripts the page reloads itself; with this one its numbers are exchanged in place.
const every = 2000;

function exchange(text) {
  const live = document.getElementById("live");
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const next = fresh.getElementById("live");
  if (!next) throw new Error("not the status page");
  const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
  const kept = Array.from(live.querySelectorAll("[id]"), (part) => [part.id, part.open, part.scrollLeft]);
  live.replaceWith(document.adoptNode(next));
  for (const [id, open, scrollLeft] of kept) {
    const part = document.getElementById(id);
    if (part) Object.assign(part, { open, scrollLeft });
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  document.title = fresh.title;
}

async function refresh() {
  const selecting = document.getSelection()?.isCollapsed === false;
  if (!document.hidden && !selecting) {
    try {
      const response = await fetch(location.pathname, { cache: "no-store" });
      exchange(await response.text());
      document.getElementById("away").hidden = true;
    } catch {
      document.getElementById("away").hidden = false;
    }
  }
  setTimeout(refresh, every);
}

setTimeout(refresh, every);
