// Elements of the page. Texts become text nodes only: nothing that a server or a user says is read as HTML.

export const find = (id) => document.getElementById(id);

/** An element with attributes, listeners (`onclick: ...`) and children, which are elements or texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined && value !== null) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children);
  return element;
}

/** A name or text of unknown direction, kept apart from the direction of the text around it. */
export const isolated = (text) => make("bdi", {}, text);

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** A number with as many digits as are worth reading. */
export const short = (number) => String(Number(number.toPrecision(3)));

/** The characters of a text as Python counts them: an emoji is one, where JavaScript counts two. */
export const characters = (text) => Array.from(text);

export function select(id, options, chosen) {
  const element = make("select", { id });
  for (const [value, text] of options) {
    const option = make("option", { value }, text);
    option.selected = value === chosen;
    element.append(option);
  }
  return element;
}
