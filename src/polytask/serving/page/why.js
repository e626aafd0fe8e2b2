// The part of an answer that shows what moved it.

import { call } from "./api.js";
import { make, select } from "./dom.js";
import { explained } from "./show.js";

const METHODS = [
  ["integrated_gradients", "Integrated gradients"],
  ["occlusion", "Leave out each word"],
];
let number = 0;

/** A button that opens the explanation of an answer, and the part that it opens. */
export function why(answer, task, input) {
  const id = `why-${(number += 1)}`;
  const panel = make("div", { id, class: "why", hidden: true });
  const button = make("button", { type: "button", class: "plain", "aria-expanded": "false", "aria-controls": id });
  button.append("What moved it?");
  button.addEventListener("click", () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    if (!panel.hidden && !panel.childElementCount) fill(panel, id, answer, task, input);
  });
  return [button, panel];
}

function fill(panel, id, answer, task, input) {
  const method = select(`${id}-method`, METHODS, METHODS[0][0]);
  const target = targets(answer, id);
  const shown = make("div", { "aria-live": "polite" });
  let latest = 0;
  const explain = async () => {
    const own = (latest += 1);
    const body = { input, task: task.name, method: method.value };
    if (target) body[target.name] = target.name === "word" ? Number(target.element.value) : target.element.value;
    shown.setAttribute("aria-busy", "true");
    let parts;
    try {
      parts = explained(await call("explain", body));
    } catch (error) {
      parts = [make("p", { class: "error" }, error.message)];
    }
    if (own !== latest) return;
    shown.replaceChildren(...parts);
    shown.removeAttribute("aria-busy");
  };
  const fields = make("div", { class: "row" }, labelled("Method", method));
  if (target) fields.append(labelled(target.label, target.element));
  for (const field of [method, target?.element]) field?.addEventListener("change", explain);
  panel.append(fields, shown);
  explain();
}

/** The choice of what is explained: one of the classes, or the tag of one of the words. */
function targets(answer, id) {
  if (answer.words) {
    const options = answer.words.map((word, index) => [String(index), `${word} – ${answer.label[index]}`]);
    const marked = answer.label.findIndex((tag) => tag !== "O");
    return { name: "word", label: "Tag of", element: select(`${id}-target`, options, String(Math.max(marked, 0))) };
  }
  if (!answer.probabilities) return null;
  const sorted = Object.entries(answer.probabilities).sort((one, other) => other[1] - one[1]);
  const options = sorted.map(([name]) => [name, name]);
  const label = typeof answer.label === "string" ? answer.label : options[0][0];
  return { name: "label", label: "Answer", element: select(`${id}-target`, options, label) };
}

const labelled = (text, element) => make("label", { class: "small" }, text, " ", element);
