// What the page does more with scripts: it follows the log, keys work, texts are copied.
// Without them everything can be read and every action taken: links and forms need none of this.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const SLOWEST_MS = 30000;
  let etag = document.documentElement.dataset.etag || "";
  let wait = EVERY_MS;

  // ---- ages

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function age(at) {
    const seconds = (Date.now() + skew - at) / 1000;
    for (const [unit, size] of UNITS) {
      if (Math.abs(seconds) >= size) {
        const said = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
        return seconds > 0 ? `${said} ago` : `in ${said}`;
      }
    }
    return "now";
  }
  // By the server's clock: that of this machine may be wrong.
  let skew = Number(document.documentElement.dataset.now || Date.now()) - Date.now();
  function tick() {
    for (const one of document.querySelectorAll(".ago[data-at]")) {
      const said = age(Date.parse(one.dataset.at));
      if (one.textContent !== said) one.textContent = said;
    }
  }

  // ---- following

  const badge = document.getElementById("lag");
  function say(text, tone) {
    if (!badge || !text) return;
    if (badge.textContent !== text) badge.textContent = text;
    badge.className = `badge ${tone || "dim"}`;
  }

  // What a section was on the server: what a reader did to it since (a form, a fold) is no change.
  const known = new Map();
  for (const one of document.querySelectorAll("main > section[id]")) known.set(one.id, plain(one));

  function plain(section) {
    const copy = section.cloneNode(true);
    for (const one of copy.querySelectorAll(".ago")) one.textContent = "";
    for (const one of copy.querySelectorAll("details[id]")) one.removeAttribute("open");
    for (const one of copy.querySelectorAll("[hidden]")) one.removeAttribute("hidden");
    return copy.innerHTML;
  }

  function edited(section) {
    for (const one of section.querySelectorAll("input, textarea, select")) {
      if (one.type === "hidden") continue;
      const first = one.tagName === "SELECT"
        ? [...one.options].find((o) => o.defaultSelected)?.value ?? one.options[0]?.value
        : one.defaultValue;
      if (one.value !== first) return true;
    }
    const active = document.activeElement;
    return Boolean(active && active.closest("form") && section.contains(active));
  }

  function follow(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const sections = [...fresh.querySelectorAll("main > section[id]")];
    const main = document.querySelector("main");
    if (!main || !sections.length) return;
    const ids = new Set(sections.map((one) => one.id));
    for (const old of document.querySelectorAll("main > section[id]")) {
      if (!ids.has(old.id) && !edited(old)) { old.remove(); known.delete(old.id); }
      else if (!ids.has(old.id)) changed(old);
    }
    let after = null;
    for (const section of sections) {
      const old = document.getElementById(section.id);
      const now = plain(section);
      if (!old) {
        const added = document.importNode(section, true);
        if (after) after.after(added); else main.prepend(added);
        known.set(section.id, now);
        dress(added);
        after = added;
        continue;
      }
      after = old;
      if (known.get(section.id) === now) continue;
      if (edited(old)) { changed(old); continue; }
      known.set(section.id, now);
      const open = new Set([...old.querySelectorAll("details[id][open]")].map((one) => one.id));
      const focused = old.contains(document.activeElement) ? place(document.activeElement) : null;
      const made = document.importNode(section, true);
      for (const one of made.querySelectorAll("details[id]")) if (open.has(one.id)) one.open = true;
      old.replaceWith(made);
      dress(made);
      after = made;
      if (focused) made.querySelector(focused)?.focus();
    }
    const title = fresh.querySelector("title");
    if (title && document.title !== title.textContent) document.title = title.textContent;
    tick();
  }

  function place(one) {
    if (one.id) return `#${CSS.escape(one.id)}`;
    const href = one.getAttribute && one.getAttribute("href");
    return href ? `a[href="${CSS.escape(href)}"]` : null;
  }

  function changed(section) {
    if (section.querySelector(".moved")) return;
    const note = document.createElement("p");
    note.className = "notice doubt moved";
    note.setAttribute("role", "status");
    note.textContent = "This has changed meanwhile. What you write is kept; load the page again to see it.";
    section.prepend(note);
  }

  async function look() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, {
        headers: { "If-None-Match": etag, Accept: "text/html" }, credentials: "same-origin", cache: "no-store",
      });
      if (answer.status === 401 || answer.redirected) { location.reload(); return; }
      say(answer.headers.get("refold-lag"), answer.headers.get("refold-lag-tone"));
      if (answer.status === 200) {
        etag = answer.headers.get("etag") || "";
        follow(await answer.text());
      }
      if (answer.status === 200 || answer.status === 304) wait = EVERY_MS;
      else { wait = Math.min(wait * 2, SLOWEST_MS); say(`cannot be read now (${answer.status})`, "bad"); }
    } catch {
      wait = Math.min(wait * 2, SLOWEST_MS);
      say("the gateway does not answer", "bad");
    }
  }
  async function round() {
    await look();
    setTimeout(round, wait);
  }

  // ---- keys

  const PLACES = { o: "overview", r: "runs", e: "effects", f: "findings", t: "timers", p: "partitions", x: "rejections" };
  let going = false;
  function rows() {
    return [...document.querySelectorAll("[data-row]")].map((row) => row.querySelector("a")).filter(Boolean);
  }
  function move(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1);
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    const help = document.getElementById("keys");
    if (going) {
      going = false;
      const link = document.querySelector(`nav a[data-place="${PLACES[event.key] || ""}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") going = true;
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "?" && help) { event.preventDefault(); if (help.open) help.close(); else help.showModal(); }
    else if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
      else document.querySelector('nav a[data-place="runs"]')?.click();
    }
  });

  // ---- what needs a script is shown by it

  function dress(part) {
    for (const one of part.querySelectorAll("[data-copy]")) one.hidden = false;
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const said = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
    } catch {
      button.textContent = "not copied";
    }
    setTimeout(() => { button.textContent = said; }, 1500);
  });
  document.addEventListener("submit", (event) => {
    // A second click sends nothing twice.
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
  });
  window.addEventListener("pageshow", () => {
    for (const one of document.querySelectorAll("form[data-sent]")) delete one.dataset.sent;
  });

  dress(document);
  tick();
  setInterval(tick, 1000);
  if (document.documentElement.dataset.follow) setTimeout(round, EVERY_MS);
})();
