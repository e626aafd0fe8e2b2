for (const table of document.querySelectorAll("table.sort")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => row.cells[at].dataset.sort ?? row.cells[at].textContent.trim();
  const sort = (head, at) => {
    const first = head.dataset.first ?? "ascending", last = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? last : first, sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => [value(row, at), row]);
    const numbers = rows.every(([v]) => v === "" || Number.isFinite(Number(v)));
    rows.sort(([a], [b]) => (a === "") - (b === "") || sign * (numbers ? a - b : a.localeCompare(b, undefined, {numeric: true})));
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    body.append(...rows.map(([, row]) => row));
  };
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head, at));
    head.setAttribute("aria-sort", "none");
    head.append(button);
  });
}
for (const hint of document.querySelectorAll(".hint")) hint.hidden = false;
