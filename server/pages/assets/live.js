// Keeps the page fresh: every ten seconds it fetches this address as a fragment and swaps only the
// pieces that changed, so that focus, selection, open details and scroll stay where they are.
// Everything on the page is there without it.
"use strict";
(() => {
  const PERIOD_MS = 10_000; // The agents' ship interval: more often would show nothing new.
  const TIMEOUT_MS = 9_000; // A slower answer is counted as none.
  const pulse = document.getElementById("pulse");
  const live = () => document.querySelectorAll("[data-live]");
  let lastGood = Date.now();
  let running = false;

  function say(text, state) {
    pulse.textContent = text;
    pulse.classList.remove("on", "off", "beat");
    if (state === "on") void pulse.offsetWidth; // Starts the animation anew.
    pulse.classList.add(...(state === "on" ? ["on", "beat"] : [state]));
  }

  // The focused element again after its piece was swapped: by id, else by address and place.
  function remember() {
    const element = document.activeElement;
    const piece = element && element.closest("[data-live]");
    if (!piece) return () => {};
    const href = element.getAttribute("href");
    const place = [...piece.querySelectorAll("a,button,summary,input,select")].indexOf(element);
    return () => {
      if (document.contains(element)) return;
      const fresh = document.querySelector(`[data-live="${CSS.escape(piece.dataset.live)}"]`);
      if (!fresh) return;
      const all = [...fresh.querySelectorAll("a,button,summary,input,select")];
      const next = (element.id && document.getElementById(element.id))
        || (href && all.find((it) => it.getAttribute("href") === href)) || all[place];
      if (next) next.focus({ preventScroll: true });
    };
  }

  function swap(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const pieces = new Map([...fresh.querySelectorAll("[data-live]")].map((it) => [it.dataset.live, it]));
    const here = [...live()];
    const same = here.length === pieces.size && here.every((it) => pieces.has(it.dataset.live));
    const restore = remember();
    const main = fresh.querySelector("main");
    if (!main) throw new Error("the answer is no page");
    document.querySelector("main").dataset.at = main.dataset.at;
    if (!same) { // A cluster came or went: the whole content changes.
      document.querySelector("main").replaceWith(document.adoptNode(main));
    } else {
      for (const old of here) {
        const piece = pieces.get(old.dataset.live);
        if (old.querySelector("[data-live]")) continue; // Its inner pieces are swapped one by one.
        const opened = [...old.querySelectorAll("details")].map((it) => it.open);
        for (const [index, details] of [...piece.querySelectorAll("details")].entries()) {
          if (opened[index]) details.open = true;
        }
        if (!old.isEqualNode(piece)) old.replaceWith(document.adoptNode(piece));
      }
    }
    restore();
  }

  async function refresh() {
    if (running || document.hidden) return;
    if (String(document.getSelection())) return; // Someone is copying text.
    running = true;
    try {
      const response = await fetch(location.href, {
        headers: { "gpufleet-fragment": "1" }, cache: "no-store",
        signal: AbortSignal.timeout(TIMEOUT_MS), redirect: "error",
      });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      swap(await response.text());
      lastGood = Date.now();
      say(`live, ${document.querySelector("main").dataset.at} UTC`, "on");
    } catch (error) {
      const seconds = Math.round((Date.now() - lastGood) / 1000);
      say(`not refreshed for ${seconds} s: ${error.name === "TimeoutError" ? "no answer in time" : error.message}`, "off");
    } finally {
      running = false;
    }
  }

  // Arrow keys walk the tiles; Tab walks the nodes.
  document.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const node = document.activeElement && document.activeElement.closest(".nodes > li");
    if (!step || !node || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const stops = [...node.querySelectorAll(".name > a, a.t")];
    const next = stops[stops.indexOf(document.activeElement) + step];
    if (next) { next.focus(); event.preventDefault(); }
  });

  if (pulse && live().length) {
    say(`live, ${document.querySelector("main").dataset.at} UTC`, "on");
    setInterval(refresh, PERIOD_MS);
    document.addEventListener("visibilitychange", refresh);
    window.addEventListener("online", refresh);
  }
})();
