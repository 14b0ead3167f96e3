// What the pages do beyond showing text: search, copy buttons, and the menu of a narrow screen. Without scripts the pages
// show all text and all links.
"use strict";

const script = document.currentScript;
const root = new URL("./", script.src); // the script stands in the root of the site

const wordsOf = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);

// search returns the sections that have all words, those with a word in their heading or title first.
function search(sections, query) {
  const words = wordsOf(query);
  if (words.length === 0) return [];
  const found = [];
  for (const s of sections) {
    const heading = s.heading.toLowerCase(), page = s.page.toLowerCase(), text = s.text.toLowerCase();
    let score = 0;
    for (const w of words) {
      const here = (heading.includes(w) ? 8 : 0) + (page.includes(w) ? 4 : 0) + (text.includes(w) ? 1 : 0);
      if (here === 0) { score = 0; break; }
      score += here;
    }
    if (score > 0) found.push({ s, score });
  }
  return found.sort((a, b) => b.score - a.score).map((f) => f.s);
}

// excerpt returns the text around the first word of the query that it has: before, the whole word, and after.
function excerpt(text, query) {
  const lower = text.toLowerCase();
  const at = wordsOf(query).map((w) => lower.indexOf(w)).find((n) => n >= 0);
  if (at === undefined) return [text.slice(0, 120), "", ""];
  const begin = at - text.slice(0, at).match(/[\w-]*$/)[0].length, end = at + text.slice(at).search(/[^\w-]|$/);
  const from = Math.max(0, begin - 50);
  return [(from > 0 ? "…" : "") + text.slice(from, begin), text.slice(begin, end), text.slice(end, end + 80)];
}

function startSearch(form) {
  const input = form.querySelector("input"), status = form.querySelector("[role=status]"), list = form.querySelector("ol");
  const shown = 12;
  let asked = false;
  const show = () => {
    const query = input.value.trim();
    const found = window.searchIndex ? search(window.searchIndex, query) : [];
    status.textContent = query === "" ? "" : !window.searchIndex ? "Loading ..." :
      found.length > shown ? `The first ${shown} of ${found.length} sections` : found.length === 0 ? `No section has "${query}"` : "";
    list.replaceChildren(...found.slice(0, shown).map((s) => {
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("small");
      link.textContent = s.heading === "" ? s.page : `${s.page}: ${s.heading}`;
      const [before, word, after] = excerpt(s.text, query), mark = document.createElement("mark");
      link.href = new URL(s.at, root);
      if (word) link.hash += ":~:text=" + encodeURIComponent(word).replaceAll("-", "%2D"); // the browser shows the word
      mark.textContent = word;
      text.append(before, mark, after);
      item.append(link, text);
      return item;
    }));
  };
  const load = () => {
    if (asked) return;
    asked = true;
    const index = document.createElement("script");
    index.src = new URL(script.dataset.index, root);
    index.onload = show;
    index.onerror = () => { status.textContent = "The index of the search could not be loaded"; };
    document.head.append(index);
  };
  form.hidden = false;
  input.addEventListener("focus", load);
  input.addEventListener("input", () => { load(); show(); });
  form.addEventListener("submit", (e) => {
    e.preventDefault();
    list.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (e) => {
    const typing = e.target.closest("input, textarea");
    if (e.key === "/" && !typing && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); input.focus(); }
    if (e.key === "Escape" && typing) { input.value = ""; show(); }
  });
}

function addCopyButton(block) {
  const button = document.createElement("button"), around = document.createElement("div");
  button.className = "copy";
  button.textContent = "Copy";
  around.className = "code";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.textContent.trimEnd());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.replaceWith(around);
  around.append(block, button);
}

function startMenu(button) {
  const narrow = window.matchMedia("(max-width: 50rem)");
  const pages = document.getElementById("pages"), contents = document.querySelector(".contents");
  const open = (yes) => {
    pages.hidden = !yes;
    button.setAttribute("aria-expanded", String(yes));
  };
  const fit = () => {
    button.hidden = !narrow.matches;
    open(!narrow.matches);
    if (contents) contents.open = !narrow.matches;
  };
  button.addEventListener("click", () => open(pages.hidden));
  narrow.addEventListener("change", fit);
  fit();
}

startMenu(document.querySelector(".menu"));
startSearch(document.querySelector("form[role=search]"));
if (navigator.clipboard) { // absent where the site is served without TLS
  for (const block of document.querySelectorAll("main pre")) {
    if (!block.querySelector("code.language-text")) addCopyButton(block); // outputs are to be read
  }
}
