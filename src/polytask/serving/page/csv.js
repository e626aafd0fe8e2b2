// Reads and writes tables of texts: CSV, tab-separated, or one text per line.

const FORMULA = /^[=+\-@\t\r]/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** The rows of a delimited text, as lists of cells. Quotes may enclose delimiters, line ends and doubled quotes. */
export function parse(text, delimiter) {
  const rows = [];
  let row = [], cell = "", quoted = false, wasQuoted = false;
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || cell !== "" || wasQuoted) rows.push(row);
    row = [], cell = "", wasQuoted = false;
  };
  for (let i = text.startsWith("\ufeff") ? 1 : 0; i < text.length; i += 1) {
    const letter = text[i];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[i + 1] === '"') cell += text[(i += 1)];
      else quoted = false;
    } else if (letter === '"' && cell === "") {
      quoted = wasQuoted = true;
    } else if (letter === delimiter) {
      row.push(cell);
      cell = "";
    } else if (letter === "\n" || letter === "\r") {
      if (letter === "\r" && text[i + 1] === "\n") i += 1;
      endRow();
    } else cell += letter;
  }
  if (cell !== "" || row.length || wasQuoted) endRow();
  return rows;
}

/** The delimiter of a file: the one that its first line has most of. */
export function delimiterOf(text) {
  const line = text.split(/[\r\n]/, 1)[0].replace(/"[^"]*"/g, "");
  const count = (delimiter) => line.split(delimiter).length;
  return [",", ";", "\t"].reduce((best, one) => (count(one) > count(best) ? one : best));
}

/** The table of a file: its columns are named by the first row. */
export function readFile(text) {
  const [columns = [], ...rows] = parse(text, delimiterOf(text));
  return { columns: columns.map((name, i) => name || `column ${i + 1}`), rows };
}

/** The table of pasted lines: one text per line, or several with tabs between them, as spreadsheets copy cells. */
export function readLines(text) {
  const hasTabs = text.includes("\t");
  const rows = hasTabs ? parse(text, "\t") : text.split(/\r?\n/).filter((line) => line.trim()).map((line) => [line]);
  const width = Math.max(1, ...rows.map((row) => row.length));
  return { columns: Array.from({ length: width }, (_, i) => (i ? `text${i + 1}` : "text")), rows };
}

/** The table as CSV. With `safe`, spreadsheets compute nothing: see `withoutFormula`. */
export function write(columns, rows, safe) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const shown = safe ? withoutFormula(text) : text;
    return /[",\r\n]/.test(shown) ? `"${shown.replaceAll('"', '""')}"` : shown;
  };
  const lines = [columns, ...rows].map((row) => row.map(cell).join(","));
  // Excel takes a file without this mark for one that is not UTF-8.
  return (safe ? "\ufeff" : "") + lines.join("\r\n") + "\r\n";
}

/** A cell that a spreadsheet shows as it is. Text with a formula's first letter gets an apostrophe; numbers do not. */
export const withoutFormula = (text) => (FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text);
