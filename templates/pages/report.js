// The report's list and pages. All that they show lies packed in this file: nothing is requested.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const overview = $("#overview"), article = $("#finding"), page = $("#page"), list = $("#list"), tools = $("#tools");
  const rows = list ? [...list.children] : [];
  const byName = new Map(rows.map((row) => ["#" + $(".id", row).textContent, row]));
  const loaded = new Promise((done) => document.readyState === "loading" ? addEventListener("DOMContentLoaded", done) : done());
  const unpacked = new Map();
  const title = document.title;
  let left = 0; // where the list was scrolled to when a finding was opened

  // -- the theme -----------------------------------------------------------------------------------
  const theme = $("#theme");
  try { theme.value = localStorage.getItem("fuzzcompile-theme") || "auto"; } catch { /* a page without storage */ }
  theme.addEventListener("change", () => { try { localStorage.setItem("fuzzcompile-theme", theme.value); } catch { /* as above */ } });

  // -- the list ------------------------------------------------------------------------------------
  const most = 200; // rows shown before one asks for all: laying out thousands at each letter typed takes too long
  let fitting = rows, all = false;
  const haystack = new Map();
  const text = (row) => haystack.get(row) ?? haystack.set(row, (row.textContent + " " + row.dataset.text).toLowerCase()).get(row);
  const orders = {
    rank: (a, b) => a.dataset.i - b.dataset.i,
    hits: (a, b) => b.dataset.hits - a.dataset.hits,
    seen: (a, b) => b.dataset.seen - a.dataset.seen,
    name: (a, b) => a.dataset.name - b.dataset.name,
  };

  function filter() {
    const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...tools.querySelectorAll("select[data-key]")].filter((select) => select.value);
    fitting = [...list.children].filter((row) =>
      wanted.every((select) => (row.dataset[select.dataset.key] || "").split(" ").includes(select.value))
      && words.every((word) => text(row).includes(word)));
    const shown = new Set(all ? fitting : fitting.slice(0, most)), count = fitting.length;
    for (const row of rows) row.hidden = !shown.has(row);
    more.hidden = shown.size === count;
    more.textContent = `Show all ${count}`;
    $("#shown").textContent = count === 0 ? "No finding fits: take a filter away, or search for something else."
      : count === rows.length ? `${count} finding${count === 1 ? "" : "s"}` : `${count} of ${rows.length} findings`;
  }

  function sort() {
    const order = orders[$("#sort").value];
    list.append(...[...rows].sort((a, b) => order(a, b) || a.dataset.i - b.dataset.i));
  }

  const more = $("#more");

  if (tools) {
    tools.hidden = false;
    tools.addEventListener("input", (event) => { if (event.target.id === "sort") sort(); filter(); });
    tools.addEventListener("submit", (event) => event.preventDefault());
    tools.addEventListener("reset", () => setTimeout(() => { sort(); filter(); }));
    more.addEventListener("click", () => { all = true; filter(); });
    filter();
  }

  // -- a finding's page ----------------------------------------------------------------------------
  async function chunk(number) {
    if (!unpacked.has(number)) {
      await loaded;
      const bytes = Uint8Array.from(atob($("#chunk" + number).textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      unpacked.set(number, JSON.parse(await new Response(stream).text()));
    }
    return unpacked.get(number);
  }

  async function html(row) {
    await loaded;
    const size = Number($("#chunk0").dataset.size), place = Number(row.dataset.i);
    return (await chunk(Math.floor(place / size)))[place % size];
  }

  async function open(row) {
    const target = location.hash;
    let content;
    try {
      content = await html(row);
    } catch (error) {
      content = "<h1 tabindex=\"-1\"></h1><p>This browser cannot unpack the page: one of 2023 or later can.</p>";
      console.error(error);
    }
    if (location.hash !== target) return; // another one was opened meanwhile
    if (!overview.hidden) left = scrollY;
    page.innerHTML = content;
    for (const code of page.querySelectorAll("code[class^=language-]")) if (!code.matches(".language-plaintext")) hljs.highlightElement(code);
    for (const block of page.querySelectorAll("pre.copied")) addCopy(block);
    overview.hidden = true;
    article.hidden = false;
    turn(row);
    document.title = `${target.slice(1)}: ${$("h1", page).textContent}`;
    scrollTo(0, 0);
    $("h1", page).focus({ preventScroll: true });
  }

  function addCopy(block) {
    const button = document.createElement("button"), source = $("code", block).textContent;
    button.type = "button";
    button.className = "copy screen";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren($("code", block));
        button.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }

  function turn(row) {
    const place = fitting.indexOf(row);
    for (const [link, other] of [[$("#previous"), fitting[place - 1]], [$("#next"), place < 0 ? undefined : fitting[place + 1]]]) {
      if (other) {
        link.href = "#" + $(".id", other).textContent;
        link.removeAttribute("aria-disabled");
      } else {
        link.removeAttribute("href");
        link.setAttribute("aria-disabled", "true");
      }
    }
  }

  function close() {
    const name = article.hidden ? null : article.dataset.name;
    article.hidden = true;
    overview.hidden = false;
    document.title = title;
    if (name === null) return;
    scrollTo(0, left);
    const row = byName.get(name);
    if (row && !row.hidden) $("a", row).focus({ preventScroll: true });
  }

  function route() {
    const row = byName.get(location.hash);
    if (row) {
      article.dataset.name = location.hash;
      return open(row);
    }
    const closing = !article.hidden;
    close();
    const section = /^#[a-z]+$/.test(location.hash) ? $(location.hash, overview) : null;
    if (section && !(closing && location.hash === "#findings")) section.scrollIntoView();
  }
  addEventListener("hashchange", route);
  route();

  // -- the keyboard --------------------------------------------------------------------------------
  function step(by) {
    const among = fitting.filter((row) => !row.hidden), at = among.findIndex((row) => row.contains(document.activeElement));
    const row = at < 0 ? among[0] : among[Math.min(among.length - 1, Math.max(0, at + by))];
    if (row) $("a", row).focus();
  }

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      else if (!article.hidden) location.hash = "#findings";
    } else if (event.key === "ArrowDown" && overview.hidden === false && !event.target.matches("select")) {
      event.preventDefault();
      step(1);
    } else if (typing) {
      return;
    } else if (event.key === "/" && tools) {
      event.preventDefault();
      if (!article.hidden) location.hash = "#findings";
      setTimeout(() => { $("#search").focus(); $("#search").select(); }, 50);
    } else if (event.key === "ArrowUp" && !overview.hidden && list?.contains(event.target)) {
      event.preventDefault();
      step(-1);
    } else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && !article.hidden && !event.target.closest("pre")) {
      $(event.key === "ArrowLeft" ? "#previous" : "#next").click();
    }
  });

  // On paper everything is open.
  addEventListener("beforeprint", () => { for (const part of article.querySelectorAll("details")) part.open = true; });
})();
