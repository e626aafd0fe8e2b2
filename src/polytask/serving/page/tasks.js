// The server's tasks: what they take, what they are called, and the inputs of requests.

/** The entry of the list of tasks that stands for all of them; a task's name is never empty. */
export const ALL = "";

/** The fields that a task needs: their names, and whether they may stay empty. */
export function fieldsOf(task, tasks) {
  if (task) {
    const fields = task.text_names.map((name) => ({ name, optional: false }));
    return takesOptions(task) ? [fields[0], { name: "options", optional: false, lines: true }] : fields;
  }
  const widths = tasks.filter((one) => !takesOptions(one)).map((one) => one.texts);
  const most = Math.max(1, ...widths), least = Math.min(...widths);
  const name = (i) => (i === 0 ? "text" : `text ${i + 1}`);
  return Array.from({ length: most }, (_, i) => ({ name: name(i), optional: i >= least }));
}

export const takesOptions = (task) => Boolean(task?.options);

/** The input of a request, given the texts of its fields. Missing texts at the end are left out. */
export function inputOf(task, values) {
  if (takesOptions(task)) {
    const options = values[1].split("\n").map((line) => line.trim()).filter(Boolean);
    return { text: values[0], options };
  }
  const texts = [...values];
  while (!task && texts.length > 1 && !texts.at(-1).trim()) texts.pop();
  return texts.length === 1 ? texts[0] : texts;
}

/** The body of a request for predictions. */
export function predictBody(task, inputs) {
  return task ? { inputs, tasks: task.name } : { inputs };
}

/** What a task does, in a sentence. */
export function about(task, tasks) {
  if (!task) return `Every task that takes this many texts: ${tasks.map((one) => one.name).join(", ")}.`;
  const classes = task.classes.length > 12 ? [...task.classes.slice(0, 12), "…"] : task.classes;
  const kinds = {
    classes: `Chooses one class: ${classes.join(", ")}.`,
    yes_no: "Answers yes or no.",
    score: task.range ? `Gives a score from ${task.range[0]} to ${task.range[1]}.` : "Gives a score.",
    multilabel: `Chooses any number of classes: ${classes.join(", ")}.`,
    tokens: "Tags the words of a text.",
    match: "Tells how well two texts belong together: a cosine from −1 to 1.",
    choice: "Chooses one of several options.",
  };
  return kinds[task.kind] || `Of kind ${task.kind}.`;
}
