import assert from "node:assert/strict";
import { test } from "node:test";

import { stringPieces, unseenPieces, withUnseen } from "../page/unseen.js";

test("what turns a text about, hides in it or looks like a space is written out", () => {
  const cases = {
    "pay \u202e000001\u202c": "pay \\u202e000001\\u202c",
    "a\u200bb\u2060c\ufeffd\u00ade": "a\\u200bb\\u2060c\\ufeffd\\u00ade",
    "a\u00a0b\u3000c\u2028d": "a\\u00a0b\\u3000c\\u2028d",
    "\u2066x\u2069 \u200e\u200f\u061c": "\\u2066x\\u2069 \\u200e\\u200f\\u061c",
    "tag\u{e0041}\u{e0100}": "tag\\udb40\\udc41\\udb40\\udd00",
    "\u3164\u115f\u2800": "\\u3164\\u115f\\u2800",
    "cut\ud800 \r\u007f\u009b": "cut\\ud800 \\u000d\\u007f\\u009b",
  };
  for (const [text, shown] of Object.entries(cases)) assert.equal(withUnseen(text), shown);
});

test("words of every script and emoji are left alone", () => {
  for (const text of ["plain {\"a\":\t1}\n", "Grüße 東京 שלום مرحبا e\u0301", "👩‍👩‍👧 ❤️ 👍🏽 🏴 ✌🏽"]) assert.equal(withUnseen(text), text);
});

test("a joiner that joins no emoji is written out", () => {
  assert.equal(withUnseen("a\u200db 👩\u200da x\ufe0f"), "a\\u200db 👩\\u200da x\\ufe0f");
});

test("arguments that are written out are the same JSON", () => {
  const text = '{"to": "a\u202eb\u{e0041}", "n\u200b": "\u00a0"}';
  assert.deepEqual(JSON.parse(withUnseen(text)), JSON.parse(text));
});

test("pieces join to the whole", () => {
  const text = 'x "a\\"b\u200b" : "c" "open';
  assert.equal(stringPieces(text).map((piece) => piece.text).join(""), text);
  assert.deepEqual(stringPieces(text).filter((piece) => piece.string).map((piece) => piece.text), ['"a\\"b\u200b"', '"c"']);
  assert.equal(unseenPieces(text).map((piece) => piece.text).join(""), withUnseen(text));
  assert.equal(unseenPieces(text).filter((piece) => piece.unseen).length, 1);
});

test("very long strings are taken apart", () => {
  const text = `{"a":"${"x\\n".repeat(500_000)}"}`;
  assert.equal(stringPieces(text).length, 5);
});
