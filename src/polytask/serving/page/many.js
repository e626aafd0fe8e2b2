// Many rows: pasted lines or a CSV file, sent in requests that the server accepts; a table and a CSV file come back.

import { Failure, callPatiently } from "./api.js";
import { readFile, readLines, write } from "./csv.js";
import { find, isolated, make, select } from "./dom.js";
import { confidence } from "./show.js";
import { fieldsOf, inputOf, predictBody, takesOptions } from "./tasks.js";

const ROWS_PER_REQUEST = 64;
const MOST_SHOWN = 200;
const MOST_CHARACTERS = 200; // of a text in the table
const SPARE_BYTES = 1000;

/** Starts the part of the page for many rows. Returns what the page tells it. */
export function startMany(state, open, askForKey) {
  let file = null; // { name, columns, rows }; without a file, the rows are those of the text field
  let result = null; // { columns, rows }
  let running = null;

  // --- rows ----------------------------------------------------------------------------------------------------------
  async function readDropped(chosen) {
    open();
    const bytes = await chosen.arrayBuffer();
    file = { name: chosen.name, ...readFile(decoded(bytes)) };
    find("rows").value = "";
    find("rows").placeholder = `${file.name}: ${file.rows.length} rows`;
    showColumns();
  }

  /** The columns of each field: selects for a file, the first ones for pasted lines. */
  function showColumns() {
    const table = file || { columns: [] };
    const options = table.columns.map((name, index) => [String(index), name]);
    const parts = fieldsOf(state.task, state.tasks).map((field, index) => {
      const own = field.optional || field.lines ? [["", "(none)"], ...options] : options;
      const named = table.columns.indexOf(field.name);
      const usual = named >= 0 ? named : field.optional || field.lines || index >= options.length ? "" : index;
      const label = field.lines ? "first option" : field.name;
      const chosen = field.lines && usual === "" && options.length > 1 ? "1" : String(usual);
      return make("label", { class: "small" }, isolated(label), " ", select(`column-${index}`, own, chosen));
    });
    find("columns").replaceChildren(...(file ? parts : []));
    find("columns").hidden = !file;
    const several = takesOptions(state.task) ? "; the text and its options" : "; several texts";
    const tabs = fieldsOf(state.task, state.tasks).length > 1 ? `${several} with tabs between them` : "";
    find("rows-hint").textContent = `One row per line${tabs}.`;
  }

  /** The texts of each field of a row. */
  function valuesOf(row) {
    const fields = fieldsOf(state.task, state.tasks);
    const places = fields.map((_, index) => (file ? find(`column-${index}`).value : String(index)));
    const values = places.map((place) => (place === "" ? "" : row[Number(place)] ?? ""));
    if (takesOptions(state.task)) values[1] = row.slice(Number(places[1] || 1)).join("\n");
    return values;
  }

  // --- requests ------------------------------------------------------------------------------------------------------
  async function run() {
    const table = file || readLines(find("rows").value);
    if (!table.rows.length) return say("There are no rows.");
    running = new AbortController();
    busy(true);
    const task = state.task; // the user may choose another one meanwhile
    const inputs = table.rows.map((row) => inputOf(task, valuesOf(row)));
    const answers = [];
    try {
      for (const some of chunks(inputs, state.limits)) {
        progress(answers.length, inputs.length);
        answers.push(...(await answersTo(task, some)));
      }
      say(`${answers.length} rows, ${answers.filter((one) => one.error).length} with an error`);
    } catch (error) {
      if (error.status === 401) askForKey();
      say(error.name === "AbortError" ? `Stopped after ${answers.length} rows` : error.message);
    }
    busy(false);
    if (answers.length) showResults(table, answers);
  }

  async function answersTo(task, inputs) {
    try {
      return (await callPatiently("predict", predictBody(task, inputs), running.signal)).results;
    } catch (error) {
      // A request that is refused as a whole is an error of its rows; without the server, nothing can go on.
      if (!(error instanceof Failure) || [0, 401].includes(error.status)) throw error;
      return inputs.map(() => ({ error: error.message }));
    }
  }

  function busy(is) {
    find("stop").hidden = find("progress").hidden = !is;
    find("rows-form").setAttribute("aria-busy", String(is));
    find("rows-form").querySelector("button.main").disabled = is;
  }

  function progress(done, total) {
    find("progress").value = done / total;
    find("count").textContent = `${done} of ${total}`;
  }

  function say(text) {
    find("count").textContent = find("status").textContent = text;
  }

  // --- results -------------------------------------------------------------------------------------------------------
  function showResults(table, answers) {
    const tasks = state.tasks.filter((task) => answers.some((one) => one.predictions?.[task.name]));
    result = resultTable(table, answers, tasks);
    const head = make("tr", {}, ...result.columns.map((name) => make("th", { scope: "col" }, isolated(name))));
    const rows = result.rows.slice(0, MOST_SHOWN).map((row, index) => {
      const cells = row.map((value) => make("td", { dir: "auto" }, shortened(value)));
      return make("tr", { class: answers[index].error ? "failed" : undefined }, ...cells);
    });
    find("table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
    const rest = result.rows.length - rows.length;
    find("rest").textContent = rest > 0 ? `${rest} more rows are in the CSV file.` : "";
    find("results").hidden = false;
  }

  function download() {
    const text = write(result.columns, result.rows, find("safe").checked);
    const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    const name = (file?.name || "rows.csv").replace(/\.[^.]*$/, "");
    make("a", { href: address, download: `${name}-predicted.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  // --- events --------------------------------------------------------------------------------------------------------
  find("rows-form").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  find("rows").addEventListener("input", () => {
    file = null;
    find("rows").placeholder = "";
    find("file").value = "";
    showColumns();
  });
  find("file").addEventListener("change", () => find("file").files[0] && readDropped(find("file").files[0]));
  find("stop").addEventListener("click", () => running.abort());
  find("download").addEventListener("click", download);
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) readDropped(event.dataTransfer.files[0]);
  });
  return { choose: showColumns };
}

const shortened = (text) => (text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}…` : text);

/** The text of a file: UTF-8, or else what old spreadsheets write. */
function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** Splits the inputs into requests that the server's limits allow. */
function* chunks(inputs, limits) {
  const most = Math.min(ROWS_PER_REQUEST, limits.max_inputs);
  let some = [], bytes = SPARE_BYTES;
  for (const input of inputs) {
    const size = new TextEncoder().encode(JSON.stringify(input)).length + 1;
    if (some.length && (some.length >= most || bytes + size > limits.max_body_bytes)) {
      yield some;
      some = [], bytes = SPARE_BYTES;
    }
    some.push(input);
    bytes += size;
  }
  if (some.length) yield some;
}

/** The rows with their answers, in the columns that `polytask predict` writes, and one for errors. */
function resultTable(table, answers, tasks) {
  const rows = answers.map((answer, index) => {
    const own = table.columns.map((_, column) => table.rows[index][column] ?? "");
    for (const { name } of tasks) {
      const one = answer.predictions?.[name];
      const share = one && confidence(one);
      own.push(one ? cell(one) : "", share === undefined ? "" : share.toFixed(4));
    }
    return [...own, answer.error || ""];
  });
  const columns = [...table.columns];
  for (const { name } of tasks) columns.push(`predicted_${name}`, `probability_${name}`);
  columns.push("error");
  const used = columns.map((_, column) => column < table.columns.length || rows.some((row) => row[column] !== ""));
  const kept = (row) => row.filter((_, column) => used[column]);
  return { columns: kept(columns), rows: rows.map(kept) };
}

function cell(answer) {
  if (answer.label === null) return "";
  if (answer.spans) return answer.spans.map((span) => `${span.label}: ${span.text}`).join("; ");
  if (Array.isArray(answer.label)) return JSON.stringify(answer.label);
  return typeof answer.label === "number" ? String(answer.label) : answer.label;
}
