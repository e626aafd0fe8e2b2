// The page: chooses a task, sends one input, shows its answers. Many rows are in many.js.

import { call, curl, hasKey, useKey } from "./api.js";
import { find, isolated, make, percent } from "./dom.js";
import { startMany } from "./many.js";
import { answerBody, confidence, headline } from "./show.js";
import { ALL, about, fieldsOf, inputOf, predictBody, takesOptions } from "./tasks.js";
import { why } from "./why.js";

const state = { tasks: [], examples: {}, limits: {}, task: undefined, values: [] };
let latest = new AbortController();

// --- start -----------------------------------------------------------------------------------------------------------
async function start() {
  show("problem", "");
  try {
    const [{ tasks }, info] = await Promise.all([call("tasks"), call("info")]);
    state.tasks = tasks.filter((task) => task.predicts);
    state.limits = info.limits;
    describe(info);
    state.examples = (await call("examples")).examples;
  } catch (error) {
    if (error.status === 401) return askForKey();
    return show("problem", error.message);
  }
  find("app").hidden = false;
  listTasks();
  chooseTask();
  if (!find("key-form").hidden) find("task").focus();
  find("key-form").hidden = true;
}

function describe(info) {
  document.title = `${info.name} – polytask`;
  find("run").textContent = info.name;
  find("model").textContent = `${info.layers} layers, up to ${info.max_length} tokens, ${info.device}`;
  find("api").hidden = hasKey();
}

function askForKey() {
  if (hasKey()) show("problem", "The server does not accept this key.");
  useKey("");
  find("app").hidden = true;
  find("key-form").hidden = false;
  find("key").focus();
}

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("key").value.trim());
  find("key").value = "";
  start();
});

function show(id, text) {
  find(id).textContent = text;
  find(id).hidden = !text;
}

// --- the task and its fields -----------------------------------------------------------------------------------------
function listTasks() {
  const options = state.tasks.map((task) => make("option", { value: task.name }, task.name));
  if (state.tasks.filter((task) => !takesOptions(task)).length > 1) options.push(make("option", { value: ALL }, "All tasks"));
  find("task").replaceChildren(...options);
}

function chooseTask() {
  state.task = state.tasks.find((task) => task.name === find("task").value);
  find("about").textContent = about(state.task, state.tasks);
  showFields();
  showExamples();
  showCurl();
  many.choose(state.task);
}

function showFields() {
  const parts = fieldsOf(state.task, state.tasks).flatMap((field, index) => {
    const id = `text-${index}`;
    const more = field.lines ? " (one per line)" : field.optional ? " (optional)" : "";
    const area = make("textarea", { id, rows: field.lines ? 4 : 3, dir: "auto", required: !field.optional });
    area.value = state.values[index] || "";
    return [make("label", { for: id }, isolated(field.name), more), area];
  });
  find("texts").replaceChildren(...parts);
}

const areas = () => [...find("texts").querySelectorAll("textarea")];

function currentInput() {
  return inputOf(state.task, areas().map((area) => area.value));
}

function showCurl() {
  find("curl").textContent = curl("predict", predictBody(state.task, [currentInput()]));
  find("copied").textContent = "";
}

find("texts").addEventListener("input", () => {
  areas().forEach((area, index) => (state.values[index] = area.value));
  showCurl();
});
find("task").addEventListener("change", () => {
  chooseTask();
  if (!find("one").hidden && areas().every((area) => area.validity.valid)) predict();
  else find("answers").replaceChildren(make("p", { class: "hint empty" }, "Answers appear here."));
});

// --- examples --------------------------------------------------------------------------------------------------------
function showExamples() {
  const shown = state.task ? [state.task] : state.tasks.filter((task) => !takesOptions(task));
  const own = shown.flatMap((task) => (state.examples[task.name] || []).slice(0, state.task ? undefined : 1));
  const buttons = own.map((texts) => {
    const button = make("button", { type: "button", class: "example" }, isolated(texts.join(" · ")));
    button.addEventListener("click", () => useExample(texts));
    return make("li", {}, button);
  });
  find("example-list").replaceChildren(...buttons);
  find("examples").hidden = !buttons.length;
}

function useExample(texts) {
  const fields = areas();
  const values = takesOptions(state.task) ? [texts[0], texts.slice(1).join("\n")] : texts;
  fields.forEach((area, index) => (area.value = state.values[index] = values[index] || ""));
  showCurl();
  predict();
}

// --- predictions -----------------------------------------------------------------------------------------------------
find("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  predict();
});
find("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("ask").requestSubmit();
});

async function predict() {
  latest.abort();
  latest = new AbortController();
  const { signal } = latest, input = currentInput();
  find("answers").setAttribute("aria-busy", "true");
  try {
    const { results } = await call("predict", predictBody(state.task, [input]), signal);
    showAnswers(results[0], input);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 401) return askForKey();
    showError(error.message);
  }
  find("answers").removeAttribute("aria-busy");
}

function showError(message) {
  find("answers").replaceChildren(make("p", { class: "error" }, message));
  find("status").textContent = `Error: ${message}`;
}

function showAnswers(result, input) {
  if (result.error) return showError(result.error);
  const texts = typeof input === "string" ? [input] : Array.isArray(input) ? input : [input.text];
  const cards = [], said = [];
  for (const task of state.tasks) {
    const answer = result.predictions[task.name];
    if (!answer) continue;
    cards.push(card(task, answer, input, texts));
    const share = confidence(answer);
    said.push(`${task.name}: ${headline(answer)}${share === undefined ? "" : `, ${percent(share)}`}`);
  }
  find("answers").replaceChildren(...cards);
  find("status").textContent = said.join("; ");
}

function card(task, answer, input, texts) {
  const title = make("h2", {}, isolated(task.name));
  const label = make("p", { class: answer.spans ? "label counts" : "label" }, isolated(headline(answer)));
  const attributes = { class: "panel answer", "aria-label": task.name };
  return make("article", attributes, title, label, ...answerBody(answer, task, texts), ...why(answer, task, input));
}

// --- tabs and copying ------------------------------------------------------------------------------------------------
const tabs = [find("tab-one"), find("tab-many")];
function chooseTab(chosen) {
  for (const tab of tabs) {
    tab.setAttribute("aria-selected", String(tab === chosen));
    tab.tabIndex = tab === chosen ? 0 : -1;
    find(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
  }
}
tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => chooseTab(tab));
  tab.addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const other = tabs[1 - index];
    chooseTab(other);
    other.focus();
  });
});

find("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(find("curl").textContent);
    find("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(find("curl")); // without https, browsers let only the user copy
    find("copied").textContent = "Selected: press Ctrl + C.";
  }
});

const many = startMany(state, () => chooseTab(find("tab-many")), askForKey);
start();
