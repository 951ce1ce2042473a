// Makes elements. Texts become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "rect", "title", "g"]);

/** Return an element with attributes and children; strings and numbers become text, null is left out. */
export function make(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const child of children.flat(Infinity)) {
    if (child !== null) element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Return the element with this id. */
export const find = (id) => document.getElementById(id);

/** Fetch JSON. Throws an Error whose message is the gateway's reason, with its `problems`. */
export async function fetchJson(address, options = {}) {
  let response;
  let document = {};
  try {
    response = await fetch(address, { ...options, headers: { Accept: "application/json", ...options.headers } });
    document = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!response) throw new Error("The gateway can't be reached.");
    if (response.ok) throw new Error("The gateway's answer is not whole.");
  }
  if (response.ok) return document;
  if (response.status === 401) location.reload();
  const error = new Error(document.error?.reason || `The gateway answered ${response.status}.`);
  error.problems = document.error?.problems || [];
  throw error;
}

/** Send a POST as only this page can. */
export const post = (address) => fetchJson(address, { method: "POST", headers: { "X-MLC-Inspector": "1" } });
