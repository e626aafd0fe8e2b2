// Answers as elements: bars of probabilities, scores on a scale, tags marked in the text, words by their effect.

import { characters, isolated, make, percent, short } from "./dom.js";

const MOST_BARS = 6;
const COLORS = 6;

/** What an answer says, in a few words: for the heading, for screen readers and for tables. */
export function headline(answer) {
  if (answer.abstained && answer.label === null) return "not sure enough";
  if (answer.label === null) return "no answer";
  if (answer.spans) return summary(answer.spans);
  if (Array.isArray(answer.label)) return answer.label.join(", ") || "none";
  return typeof answer.label === "number" ? short(answer.label) : answer.label;
}

function summary(spans) {
  const counts = new Map();
  for (const { label } of spans) counts.set(label, (counts.get(label) || 0) + 1);
  return [...counts].map(([label, count]) => `${count} × ${label}`).join(", ") || "nothing marked";
}

/** The probability of the predicted label, if it has one. */
export function confidence(answer) {
  return typeof answer.label === "string" ? answer.probabilities?.[answer.label] : undefined;
}

/** The body of one task's answer. */
export function answerBody(answer, task, texts) {
  const parts = [];
  if (answer.spans) parts.push(tagged(texts[0], answer.spans));
  else if (answer.probabilities) parts.push(bars(answer));
  else if (typeof answer.label === "number") parts.push(scale(answer.label, task));
  for (const note of notes(answer)) parts.push(make("p", { class: "hint" }, note));
  return parts;
}

function notes(answer) {
  const found = [];
  if (answer.truncated) found.push(`The text has ${answer.tokens} tokens; the model did not read all of them.`);
  if (answer.windows > 1) found.push(`The text was read in ${answer.windows} windows.`);
  if (answer.abstained) found.push("The model abstains where its probability is too low.");
  return found;
}

// --- probabilities and scores ----------------------------------------------------------------------------------------
function bars({ probabilities, label }) {
  const chosen = new Set(Array.isArray(label) ? label : [label]);
  const sorted = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  const list = make("ol", { class: "bars" });
  const add = (some) => list.append(...some.map(([name, share]) => bar(name, share, chosen.has(name))));
  add(sorted.slice(0, MOST_BARS));
  const rest = sorted.slice(MOST_BARS);
  if (!rest.length) return list;
  const more = make("button", { type: "button", class: "plain" }, `Show ${rest.length} more`);
  more.addEventListener("click", () => {
    add(rest);
    more.remove();
    list.children[MOST_BARS].tabIndex = -1;
    list.children[MOST_BARS].focus();
  });
  return make("div", {}, list, more);
}

function bar(name, share, chosen) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make(
    "li",
    { class: chosen ? "chosen" : undefined },
    make("span", { class: "name" }, isolated(name)),
    make("span", { class: "number" }, percent(share)),
    make("span", { class: "track", "aria-hidden": "true" }, fill),
  );
}

function scale(value, task) {
  const range = task.range || (task.kind === "match" ? [-1, 1] : null);
  if (!range) return make("p", { class: "hint" }, "This task's scores have no range.");
  const [low, high] = range;
  const dot = make("span", { class: "dot" });
  dot.style.left = `${100 * Math.min(1, Math.max(0, (value - low) / (high - low)))}%`;
  const ends = make("div", { class: "ends" }, make("span", {}, short(low)), make("span", {}, short(high)));
  const label = `${short(value)} on a scale from ${short(low)} to ${short(high)}`;
  return make("div", { class: "scale", role: "img", "aria-label": label }, make("div", { class: "track" }, dot), ends);
}

// --- tags of words ---------------------------------------------------------------------------------------------------
function tagged(text, spans) {
  const letters = characters(text);
  const labels = [...new Set(spans.map((span) => span.label))].sort();
  const shown = make("p", { class: "text", dir: "auto" });
  let end = 0;
  for (const span of spans) {
    const color = `tag color-${labels.indexOf(span.label) % COLORS}`;
    const inside = letters.slice(span.start, span.end).join("");
    const tag = make("small", {}, isolated(span.label));
    const mark = make("mark", { class: color, title: percent(span.probability) }, isolated(inside), "\u00a0", tag);
    shown.append(letters.slice(end, span.start).join(""), mark);
    end = span.end;
  }
  shown.append(letters.slice(end).join(""));
  return shown;
}

// --- explanations ----------------------------------------------------------------------------------------------------
/** The texts with their words colored by their effect, and the words with the largest effects as a table. */
export function explained({ texts, words, label, truncated }) {
  const largest = Math.max(...words.map((word) => Math.abs(word.value)), 0) || 1;
  const parts = texts.map((text, index) => {
    const letters = characters(text);
    const shown = make("p", { class: "text", dir: "auto" });
    let end = 0;
    for (const word of words.filter((one) => one.text === index)) {
      shown.append(letters.slice(end, word.start).join(""), effect(word, largest));
      end = word.end;
    }
    shown.append(letters.slice(end).join(""));
    return shown;
  });
  const cut = truncated ? [make("p", { class: "hint" }, "Words that the model did not read have no effect.")] : [];
  return [...parts, legend(label), table(words, label), ...cut];
}

function effect(word, largest) {
  const strength = Math.abs(word.value) / largest;
  if (strength < 0.05) return document.createTextNode(word.word);
  const side = word.value >= 0 ? "for" : "against";
  const shown = make("span", { class: `effect ${side}`, title: signed(word.value) }, word.word);
  shown.style.setProperty("--strength", strength.toFixed(2));
  return shown;
}

function legend(label) {
  const goal = typeof label === "number" ? "a higher score" : label;
  const [more, less] = ["for", "against"].map((side) => {
    const sample = make("span", { class: `effect ${side}` }, side);
    sample.style.setProperty("--strength", "1");
    return sample;
  });
  return make("p", { class: "hint" }, "Words that speak ", more, " or ", less, " ", isolated(String(goal)), ":");
}

const signed = (value) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(3);

function table(words, label) {
  const top = [...words].sort((one, other) => Math.abs(other.value) - Math.abs(one.value)).slice(0, 5);
  const rows = top.map((word) =>
    make("tr", {}, make("th", { scope: "row" }, isolated(word.word)), make("td", { class: "number" }, signed(word.value))),
  );
  const effect = typeof label === "number" ? "Effect on the score" : "Effect on the probability";
  const head = make("tr", {}, make("th", { scope: "col" }, "Word"), make("th", { scope: "col", class: "number" }, effect));
  return make("table", { class: "effects" }, make("thead", {}, head), make("tbody", {}, ...rows));
}
