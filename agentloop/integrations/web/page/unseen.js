/**
 * Characters of a text that nobody sees, or that turn about what stands beside them, written out.
 *
 * They are written as JSON escapes (`\u202e`), so arguments that show one are still the same JSON. Marked are controls,
 * every space but the plain one, embeddings, overrides and marks of direction, joiners and tags. What makes up an emoji
 * is left alone.
 */

const UNSEEN =
  /(?![ \n\t])(?!(?<=[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f])\u200d\p{Extended_Pictographic})(?!(?<=\p{Extended_Pictographic})\ufe0f)[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;
const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/gsu;

function escaped(character) {
  return character.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join("");
}

/** The text with those characters written out. */
export function withUnseen(text) {
  return text.replace(UNSEEN, escaped);
}

/** The text in pieces `{text, unseen}`: `unseen` ones are written out. */
export function unseenPieces(text) {
  const pieces = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(UNSEEN)) {
    if (index > at) pieces.push({ text: text.slice(at, index), unseen: false });
    pieces.push({ text: escaped(found), unseen: true });
    at = index + found.length;
  }
  if (at < text.length) pieces.push({ text: text.slice(at), unseen: false });
  return pieces;
}

/** JSON text in pieces `{text, string}`: each string by itself, so that letters from right to left move nothing but it. */
export function stringPieces(text) {
  const pieces = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(STRING)) {
    if (index > at) pieces.push({ text: text.slice(at, index), string: false });
    pieces.push({ text: found, string: true });
    at = index + found.length;
  }
  if (at < text.length) pieces.push({ text: text.slice(at), string: false });
  return pieces;
}
