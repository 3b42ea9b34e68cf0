// Keeps the page fresh: when the server tells by /live that something changed, and every ten seconds while
// it does not, it fetches this address as a fragment and swaps only the pieces that changed, so that focus,
// selection, open details, scroll and what is filled in stay as they are. Everything on the page is there without it.
"use strict";
(() => {
  const PERIOD_MS = 10_000; // The agents' ship interval: more often would show nothing new.
  const TIMEOUT_MS = 9_000; // A slower answer is counted as none.
  const SPREAD_MS = 4_000; // All open pages are told at once, just after the detectors have judged; so they do not ask at once.
  const UNTOLD_MS = 30_000; // A stream that has told nothing for so long is not waited for: we ask.
  const AGAIN_MS = 60_000; // A stream that was refused is asked for again after so long …
  const ROOM_MS = 600_000; // … and one that was given up to make room after so long.
  const NOTES = ["store", "detectors"]; // What is wrong with the server itself: on top of any page, and never held back.
  const SIGNED_OUT = "you are not signed in any more";
  const SENT_AWAY = "you are asked to sign in again"; // By a proxy: no page that is kept fresh leads elsewhere itself.
  const pulse = document.getElementById("pulse");
  let lastGood = Date.now(); // When the page last showed what the server said.
  let lastHeard = Date.now(); // When the server last said something.
  let running = false;
  let isTold = false; // While it ran.
  let stream = null;
  let waitsUntil = 0; // No stream is asked for before.

  const isStreaming = () => stream !== null && stream.readyState === EventSource.OPEN;

  // What is played back or simulated is not called live, however often it is asked for.
  function good() {
    const { at, stands } = document.querySelector("main").dataset;
    say(`${stands || "live"}, ${at} UTC`, stands === "recorded" ? "still" : "on");
  }

  // What is newer than the page is there for a period, and is not shown.
  function held(why) {
    if (Date.now() - lastGood < PERIOD_MS) return;
    say(`held at ${document.querySelector("main").dataset.at} UTC while ${why}`, "held");
  }

  function say(text, state, way = null) {
    const isNews = state === "off" || state === "held";
    pulse.setAttribute("aria-live", isNews ? "polite" : "off"); // Nobody wants to hear the time every ten seconds.
    const link = pulse.querySelector("a"); // One that is there stays, with the focus that it may have.
    if (way && link && link.href === way.href) pulse.firstChild.data = `${text}. `;
    else if (way) pulse.replaceChildren(`${text}. `, way);
    else if (pulse.textContent !== text) pulse.textContent = text; // The same is not read out again.
    pulse.title = isStreaming() ? "told by the server" : "asked every 10 s";
    pulse.classList.remove("on", "off", "beat", "still", "held");
    if (state === "on") void pulse.offsetWidth; // Starts the animation anew.
    pulse.classList.add(...(state === "on" ? ["on", "beat"] : [state]));
  }

  // Where to sign in and come back here: by the form for a token, or where a proxy asks for it by this address.
  function signIn(why) {
    const here = location.pathname + location.search;
    const ways = { [SIGNED_OUT]: `/sign-in?back=${encodeURIComponent(here)}`, [SENT_AWAY]: here };
    if (!(why in ways)) return null;
    const link = document.createElement("a");
    link.href = ways[why];
    link.textContent = "Sign in";
    return link;
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

  // The pieces of a page, without the notes on top of it.
  function pieces(of) {
    return [...of.querySelectorAll("[data-live]")].filter((it) => !NOTES.includes(it.dataset.live));
  }

  // Notes come, change and go whatever stands still below them.
  function note(main) {
    const here = document.querySelector("main");
    let last = null;
    for (const name of NOTES) {
      const [old, next] = [here, main].map((it) => it.querySelector(`:scope > [data-live="${name}"]`));
      if (old && next && old.isEqualNode(next)) {
        last = old;
        continue;
      }
      if (old) old.remove();
      if (!next) continue;
      const added = document.importNode(next, true);
      if (last) last.after(added);
      else here.prepend(added);
      last = added;
    }
  }

  // Why no piece is swapped now; empty where nothing is against it.
  function disturbed(same) {
    if (String(document.getSelection())) return "text is selected";
    const field = document.activeElement;
    return !same && field && field.closest("main form") ? "you fill in a form" : "";
  }

  // Shows what the server said; why it does not, where it would disturb.
  function swap(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const main = fresh.querySelector("main");
    if (!main) throw new Error("the answer is no page");
    const named = new Map(pieces(main).map((it) => [it.dataset.live, it]));
    const here = pieces(document);
    const same = here.length === named.size && here.every((it) => named.has(it.dataset.live));
    const restore = remember();
    note(main);
    const why = disturbed(same);
    if (!why) renew(main, same ? here : null, named);
    restore();
    return why;
  }

  // Swaps the pieces that are here; without any, the whole content.
  function renew(main, here, named) {
    document.querySelector("main").dataset.at = main.dataset.at;
    if (!here) { // A cluster came or went.
      keep(document.querySelector("main"), main);
      document.querySelector("main").replaceWith(document.adoptNode(main));
      return;
    }
    for (const old of here) {
      const piece = named.get(old.dataset.live);
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

  async function refresh() {
    if (running) isTold = true;
    if (running || document.hidden) return;
    running = true;
    isTold = false;
    try {
      const response = await fetch(location.href, {
        headers: { "gpufleet-fragment": "1" }, cache: "no-store",
        signal: AbortSignal.timeout(TIMEOUT_MS), redirect: "manual",
      });
      if (response.type === "opaqueredirect") throw new Error(SENT_AWAY);
      if (response.status === 401) throw new Error(SIGNED_OUT);
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      const html = await response.text();
      if (document.hidden) return;
      const why = swap(html);
      lastHeard = Date.now();
      if (why) return held(why);
      lastGood = lastHeard;
      good();
    } catch (error) {
      const seconds = Math.round((Date.now() - lastGood) / 1000);
      const isLate = error.name === "TimeoutError";
      if (isLate && stream && isAlone()) makeRoom();
      const why = isLate ? "no answer in time" : error.message;
      say(`not refreshed for ${seconds} s: ${why}`, "off", signIn(why));
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
        waitsUntil = Date.now() + AGAIN_MS;
      }
    };
  }

  // Whether each request has a connection to itself, as without TLS: by HTTP/2 all share one.
  function isAlone() {
    const [loaded] = performance.getEntriesByType("navigation");
    return loaded?.nextHopProtocol === "http/1.1";
  }

  // Of such connections a browser has six to a host, for all its windows: streams that take them all leave none to ask by.
  // An answer may be late for other reasons too, so this page asks by itself for a while and not for ever.
  function makeRoom() {
    leave();
    waitsUntil = Date.now() + ROOM_MS;
    isTold = true; // There may be room at once.
  }

  function leave() {
    if (stream) stream.close();
    stream = null;
  }

  function tick() {
    if (!stream && Date.now() >= waitsUntil) follow();
    if (!isStreaming() || Date.now() - lastHeard >= UNTOLD_MS) refresh();
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

  if (pulse && document.querySelector("[data-live]")) {
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
