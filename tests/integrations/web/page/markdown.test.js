import assert from "node:assert/strict";
import { test } from "node:test";

import { GrowingMarkdown, isLinkable, renderBlocks, renderMarkdown } from "../page/markdown.js";
import { grouped, prettyJson, when } from "../page/words.js";

const LONG = `# Title

A paragraph with **bold** and \`code\`.

1. one

2. two
   - inner

> quoted
lazy

\`\`\`python
x = 1

y = 2
\`\`\`

| a | b |
|---|--:|
| 1 | 2 |

Setext
======

See [it][ref] there.

[ref]: https://example.com/

Last *words*`;

/** What a page shows of a text that came in steps. */
function grow(text, step, finish = true) {
  const growing = new GrowingMarkdown();
  let shown = [];
  const take = ({ kept, blocks }) => {
    shown = [...shown.slice(0, kept), ...blocks];
  };
  for (let at = 0; at <= text.length; at += step) take(growing.update(text.slice(0, at)));
  if (finish) take(growing.finish(text));
  else take(growing.update(text));
  return shown;
}

test("a text that grew is the text that came at once", () => {
  for (const step of [1, 2, 3, 7, 50]) assert.deepEqual(grow(LONG, step), renderBlocks(LONG));
});

test("the blocks of a growing text are those of the whole, before it is finished", () => {
  const plain = LONG.replace("See [it][ref] there.\n\n", "");
  for (const step of [1, 5, 64]) assert.deepEqual(grow(plain, step, false), renderBlocks(plain));
});

test("a definition that came before is kept for the blocks that follow", () => {
  const text = "[ref]: https://example.com/\n\none\n\ntwo\n\nthree\n\n[it][ref]";
  assert.match(grow(text, 4, false).at(-1), /href="https:\/\/example.com\/"/);
});

test("a step of a long text makes the last blocks again, and no more", () => {
  const growing = new GrowingMarkdown();
  const text = Array.from({ length: 300 }, (_, i) => `Paragraph ${i}`).join("\n\n");
  growing.update(text);
  assert.equal(growing.update(`${text} and more`).blocks.length, 2);
});

test("line ends of any kind give the same blocks", () => {
  assert.deepEqual(grow(LONG.replaceAll("\n", "\r\n"), 3), renderBlocks(LONG));
});

test("HTML is text", () => {
  assert.equal(renderMarkdown("<img src=x onerror=alert(1)>"), "<p>&lt;img src=x onerror=alert(1)&gt;</p>\n");
});

test("only web and mail addresses are links", () => {
  for (const bad of ["javascript:alert(1)", "data:text/html,x", "vbscript:x", "//example.com", "/api/session", "#/c/x", "file:///etc"]) {
    assert.equal(isLinkable(bad), false, bad);
    assert.doesNotMatch(renderMarkdown(`[x](${bad}) <${bad}>`), /<a /, bad);
  }
  assert.match(renderMarkdown("[x](https://example.com) <mailto:a@b.c>"), /<a href="https:\/\/example.com".*<a href="mailto:a@b.c"/);
});

test("an address in a text is a link, and the name of a file is none", () => {
  assert.match(renderMarkdown("see https://example.com/a_b."), /<a href="https:\/\/example.com\/a_b">/);
  assert.doesNotMatch(renderMarkdown("open main.py and README.md"), /<a /);
});

test("an image becomes a link, so that nothing is loaded", () => {
  const html = renderMarkdown("![A chart](https://example.com/c.png)");
  assert.match(html, /<a href="https:\/\/example.com\/c.png"[^>]*>A chart<\/a>/);
  assert.doesNotMatch(html, /<img/);
});

test("cells are aligned without a style attribute", () => {
  const html = renderMarkdown("| a |\n|--:|\n| 1 |");
  assert.match(html, /<td align="right">/);
  assert.doesNotMatch(html, /style=/);
});

test("arguments are set out only where that changes no value", () => {
  assert.equal(prettyJson('{"a":1, "b": "x y"}'), '{\n  "a": 1,\n  "b": "x y"\n}');
  for (const exact of ['{"n": 12345678901234567890}', '{"n": 1.0}', '{"a": 1, "a": 2}', '{"a": "\\u00e9"}', "no json", '{"b": 1, "2": 1, "1": 2}']) {
    assert.equal(prettyJson(exact), null, exact);
  }
});

test("numbers and times are short", () => {
  assert.equal(grouped(1234567), "1\u202f234\u202f567");
  assert.equal(grouped(12), "12");
  assert.equal(when(Date.UTC(2020, 0, 1, 12), Date.UTC(2020, 0, 2, 12)), "Yesterday");
});
