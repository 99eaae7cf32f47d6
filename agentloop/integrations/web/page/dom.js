/** Elements, made from values. No text is ever read as HTML here. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element.
 *
 * @param attributes - `on<event>` are listeners, `testid` is `data-testid`, `true` sets an empty attribute; `false` and
 *   null set none.
 * @param children - nodes and texts; null, undefined and false are left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "testid") element.dataset.testid = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SHAPES = {
  plus: ["M12 5v14", "M5 12h14"],
  send: ["M12 19V5", "M5.5 11.5 12 5l6.5 6.5"],
  stop: ["M7.5 7.5h9v9h-9z"],
  trash: ["M4.5 7h15", "M9.5 7V4.5h5V7", "M6.5 7l.8 12.5h9.4L17.5 7", "M10 10.5v5.5", "M14 10.5v5.5"],
  menu: ["M4 8h16", "M4 16h16"],
  copy: ["M9 9h10.5v10.5H9z", "M15 9V4.5H4.5V15H9"],
  check: ["M5 12.5l4.5 4.5L19 7.5"],
  cross: ["M6.5 6.5l11 11", "M17.5 6.5l-11 11"],
  chevron: ["M9 6l6 6-6 6"],
  down: ["M12 5v14", "M5.5 12.5 12 19l6.5-6.5"],
  contrast: ["M12 3.5a8.5 8.5 0 1 0 0 17z", "M12 3.5a8.5 8.5 0 0 1 0 17"],
};

/** A line drawing of 24 units, which says nothing to a screen reader. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon", `icon-${name}`);
  for (const d of SHAPES[name]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

/** Sets an element's text, and leaves it alone where it has that text already. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the children of an element these nodes, in this order, moving none that is in its place. */
export function arrange(parent, nodes) {
  for (const [i, node] of nodes.entries()) {
    if (parent.childNodes[i] !== node) parent.insertBefore(node, parent.childNodes[i] ?? null);
  }
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

/** Puts a text on the clipboard; false where the browser refuses. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page that came over plain HTTP has no clipboard of its own
  }
  const area = h("textarea", { class: "offscreen", "aria-hidden": "true", value: text });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** A button that copies what `read` gives, and says so for a moment. */
export function copyButton(read, label) {
  const word = h("span", {}, "Copy");
  const button = h("button", { type: "button", class: "quiet copy", "aria-label": label }, icon("copy"), word);
  button.addEventListener("click", async () => {
    setText(word, (await copyText(read())) ? "Copied" : "Not copied");
    setTimeout(() => setText(word, "Copy"), 1600);
  });
  return button;
}
