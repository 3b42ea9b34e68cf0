// Keeps the page fresh: when the server tells by /live that something changed, and every ten seconds while
// it does not, it fetches this address as a fragment and swaps only the pieces that changed, so that focus,
// selection, open details, scroll and what is filled in stay as they are. Everything on the page is there without it.
"use strict";
(() => {
  const PERIOD_MS = 10_000; // The agents' ship interval: more often would show nothing new.
  const TIMEOUT_MS = 9_000; // A slower answer is counted as none.
  const SPREAD_MS = 4_000; // All open pages are told at once, just after the detectors have judged; so they do not ask at once.
  const UNTOLD_MS = 30_000; // A stream that has told nothing for so long is not waited for: we ask.
  const AGAIN_MS = 60_000; // A stream that was refused is asked for again after so long.
  const pulse = document.getElementById("pulse");
  const live = () => document.querySelectorAll("[data-live]");
  let lastGood = Date.now();
  let running = false;
  let isTold = false; // While it ran.
  let isHeld = false; // By a person who selects text or fills in a form.
  let stream = null;
  let refusedAt = 0;

  const isStreaming = () => stream !== null && stream.readyState === EventSource.OPEN;

  // What is played back or simulated is not called live, however often it is asked for.
  function good() {
    const { at, stands } = document.querySelector("main").dataset;
    say(`${stands || "live"}, ${at} UTC`, stands === "recorded" ? "still" : "on");
  }

  // What a person holds still is not called live once it could have changed.
  function hold(why) {
    if (Date.now() - lastGood < PERIOD_MS) return;
    say(`held at ${document.querySelector("main").dataset.at} UTC while ${why}`, "still");
  }

  function say(text, state) {
    pulse.setAttribute("aria-live", state === "off" ? "polite" : "off"); // Nobody wants to hear the time every ten seconds.
    pulse.textContent = text;
    pulse.title = isStreaming() ? "told by the server" : "asked every 10 s";
    pulse.classList.remove("on", "off", "beat", "still");
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

  // Whether a person has filled in a field, or chosen in a list: of one in which nothing is preset the first is shown.
  function isChanged(field) {
    if (!field.options) return field.value !== field.defaultValue || field.checked !== field.defaultChecked;
    const options = [...field.options];
    const isPreset = field.multiple || options.some((it) => it.defaultSelected);
    return options.some((it, place) => it.selected !== (isPreset ? it.defaultSelected : place === 0));
  }

  // What was filled in and not sent yet goes from a piece into the one that takes its place.
  function keep(old, fresh) {
    const fields = [...old.querySelectorAll("input[id],select[id],textarea[id]")];
    for (const field of fields.filter(isChanged)) {
      const next = fresh.querySelector(`#${CSS.escape(field.id)}`);
      if (!next) continue;
      if (field.options) {
        const chosen = [...field.selectedOptions].map((it) => it.value);
        for (const option of next.options) option.selected = chosen.includes(option.value);
      } else {
        next.value = field.value;
        if ("checked" in field) next.checked = field.checked;
      }
      const details = next.closest("details");
      if (details) details.open = true;
    }
  }

  // What says that the page cannot be believed goes in whatever a person does meanwhile.
  function warn(main) {
    for (const name of ["detectors", "store"]) {
      const [old, fresh] = [document, main].map((it) => it.querySelector(`[data-live="${name}"]`));
      if (old && fresh && old.isEqualNode(fresh)) continue;
      if (fresh) document.querySelector("main").prepend(document.importNode(fresh, true));
      if (old) old.remove();
    }
  }

  // Why the page stays as it is; nothing where it is as new as the answer.
  function swap(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const main = fresh.querySelector("main");
    if (!main) throw new Error("the answer is no page");
    const restore = remember();
    warn(main);
    const pieces = new Map([...fresh.querySelectorAll("[data-live]")].map((it) => [it.dataset.live, it]));
    const here = [...live()];
    const same = here.length === pieces.size && here.every((it) => pieces.has(it.dataset.live));
    const field = document.activeElement;
    const isCopying = String(document.getSelection()) !== "";
    if (isCopying || (!same && field && field.closest("main form"))) { // Nobody who is at work is disturbed.
      restore();
      return isCopying ? "text is selected" : "a form is filled in";
    }
    document.querySelector("main").dataset.at = main.dataset.at;
    if (!same) { // A cluster came or went: the whole content changes.
      keep(document.querySelector("main"), main);
      document.querySelector("main").replaceWith(document.adoptNode(main));
    } else {
      for (const old of here) {
        const piece = pieces.get(old.dataset.live);
        if (old.querySelector("[data-live]")) continue; // Its inner pieces are swapped one by one.
        const opened = [...old.querySelectorAll("details")].map((it) => it.open);
        for (const [index, details] of [...piece.querySelectorAll("details")].entries()) {
          if (opened[index]) details.open = true;
        }
        if (old.isEqualNode(piece)) continue;
        keep(old, piece);
        old.replaceWith(document.adoptNode(piece));
      }
    }
    restore();
    return null;
  }

  async function refresh() {
    if (running) isTold = true;
    if (running || document.hidden) return;
    running = true;
    isTold = false;
    try {
      const response = await fetch(location.href, {
        headers: { "gpufleet-fragment": "1" }, cache: "no-store",
        signal: AbortSignal.timeout(TIMEOUT_MS), redirect: "error",
      });
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const html = await response.text();
      if (document.hidden) return;
      const why = swap(html);
      isHeld = why !== null;
      if (isHeld) return hold(why);
      lastGood = Date.now();
      good();
    } catch (error) {
      const seconds = Math.round((Date.now() - lastGood) / 1000);
      say(`not refreshed for ${seconds} s: ${error.name === "TimeoutError" ? "no answer in time" : error.message}`, "off");
    } finally {
      running = false;
      if (isTold) setTimeout(refresh, SPREAD_MS);
    }
  }

  // Has the server tell, as long as somebody looks.
  function follow() {
    if (stream || document.hidden) return;
    stream = new EventSource("/live");
    stream.onmessage = () => setTimeout(refresh, Math.random() * SPREAD_MS);
    stream.onerror = () => {
      // One that was cut comes back by itself; one that was refused does not.
      if (stream.readyState === EventSource.CLOSED) {
        stream = null;
        refusedAt = Date.now();
      }
    };
  }

  function leave() {
    if (stream) stream.close();
    stream = null;
  }

  function tick() {
    if (!stream && Date.now() - refusedAt >= AGAIN_MS) follow();
    if (isHeld || !isStreaming() || Date.now() - lastGood >= UNTOLD_MS) refresh();
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
    good();
    setInterval(tick, PERIOD_MS);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) return leave();
      follow();
      refresh();
    });
    window.addEventListener("online", refresh);
    window.addEventListener("pagehide", leave); // What the browser keeps for the way back holds none.
    window.addEventListener("pageshow", (event) => {
      follow();
      if (event.persisted) refresh();
    });
  }
})();
