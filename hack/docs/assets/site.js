// What the pages do beyond showing text: search, copy buttons, and the menu of a narrow screen. Without scripts the pages
// show all text and all links.
"use strict";

const script = document.currentScript;
const root = new URL("./", script.src); // the script stands in the root of the site

// Words that say nothing of what is looked for.
const common = new Set("a an and are be by can do does for from get how i if in into is it make me my of on or set so that the there this to use using what when where which who why with you".split(" "));

// stem takes the end of a word away that a page may have otherwise: policies and policy, excluded and exclude, codes and code.
const stem = (word) => word.length < 5 ? word : word.replace(/(ies|y|ing|ed|es|s|e)$/, "");

const split = (text) => text.toLowerCase().match(/[\p{L}\p{N}][\p{L}\p{N}./-]*[\p{L}\p{N}]|[\p{L}\p{N}]/gu) ?? [];

// wordsOf returns the stems of the words that a query looks for. A query of common words alone looks for these.
function wordsOf(query) {
  const words = split(query), telling = words.filter((w) => !common.has(w));
  return (telling.length > 0 ? telling : words).map(stem);
}

// distance returns how many letters are missing, too many, wrong, or exchanged with their neighbor between two words: the optimal string
// alignment distance. It stops at more than most.
function distance(a, b, most) {
  if (Math.abs(a.length - b.length) > most) return most + 1;
  let before = [], last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], before[j - 2] + 1);
    }
    if (Math.min(...row) > most) return most + 1;
    before = last;
    last = row;
  }
  return last[b.length];
}

// lowered returns the parts of a section for comparisons, made once.
const lowered = (s) => s.lowered ??= { heading: s.heading.toLowerCase(), page: s.page.toLowerCase(), text: s.text.toLowerCase() };

// corrected returns the words of a query, each that no section has replaced by the most frequent word that is nearest to it.
function corrected(sections, words) {
  let counts;
  return words.map((word) => {
    if (sections.some((s) => Object.values(lowered(s)).some((text) => text.includes(word)))) return word;
    if (!counts) {
      counts = new Map();
      for (const s of sections) for (const w of split(`${s.heading} ${s.page} ${s.text}`)) counts.set(stem(w), (counts.get(stem(w)) ?? 0) + 1);
    }
    let best = word, near = (word.length < 4 ? 0 : word.length < 8 ? 1 : 2) + 1;
    for (const [w, n] of counts) {
      const d = w.length < 3 ? Infinity : distance(word, w, near);
      if (d < near || (d === near && best !== word && n > counts.get(best))) { best = w; near = d; }
    }
    return best;
  });
}

// scored returns what each word is worth in a section: most in its heading, then in the title of its page, and more at the begin of a word.
function scored(s, words, query) {
  const { heading, page, text } = lowered(s);
  const at = (where, w, worth) => !where.includes(w) ? 0 : new RegExp(`(^|[^\\p{L}\\p{N}])${w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}`, "u").test(where) ? worth : worth / 4;
  const early = (w) => text.includes(w) ? 0.5 * (1 - text.indexOf(w) / text.length) : 0; // a section often begins with what it is about
  const each = words.map((w) => at(heading, w, 8) + at(page, w, 6) + at(text, w, 1) + early(w));
  const phrase = words.length > 1 && query.length > 3 ? (heading.includes(query) ? 12 : 0) + (text.includes(query) ? 4 : 0) : 0;
  return { has: each.filter((n) => n > 0).length, score: each.reduce((a, b) => a + b, phrase) };
}

// search returns the sections that have all words of a query, or as many as any section has, the best first; and the words.
function search(sections, query) {
  const words = corrected(sections, wordsOf(query));
  if (words.length === 0) return { words, found: [] };
  const all = sections.map((s) => ({ s, ...scored(s, words, query.toLowerCase()) }));
  const most = Math.max(...all.map((f) => f.has));
  const found = all.filter((f) => most > 0 && f.has === most).sort((a, b) => b.score - a.score).map((f) => f.s);
  return { words, found };
}

// excerpt returns the text around the first of the words that it has: before, the whole word, and after.
function excerpt(text, words) {
  const lower = text.toLowerCase();
  const at = words.map((w) => lower.indexOf(w)).find((n) => n >= 0);
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
    const { words, found } = window.searchIndex ? search(window.searchIndex, query) : { words: [], found: [] };
    status.textContent = query === "" ? "" : !window.searchIndex ? "Loading ..." :
      found.length > shown ? `The first ${shown} of ${found.length} sections` : found.length === 0 ? `No section has "${query}"` : "";
    list.replaceChildren(...found.slice(0, shown).map((s) => {
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("small");
      link.textContent = s.heading === "" ? s.page : `${s.page}: ${s.heading}`;
      const [before, word, after] = excerpt(s.text, words), mark = document.createElement("mark");
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
