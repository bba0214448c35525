"use strict";
// What the page's data must hold. Python makes them from the dataclasses of schema.py; a test compares the two. The
// scripts read the data through `checked`: a field that only one side knows stops the page with a message.

/** A type: "string", "number" or "boolean"; [type] for a list; [type, type] for a pair; {"*": type} for a mapping. */
const SCHEMA = {
  "model": "string",
  "lead": "string",
  "protocol": "string",
  "captions": {"overview": "string", "maps": "string", "head": "string", "text": "string"},
  "tables": [
    {"title": "string", "note": "string", "columns": [{"name": "string", "wordy": "boolean"}], "rows": [["string"]]}
  ],
  "tokens": ["string"],
  "layers": ["number"],
  "heads": "number",
  "maps": [["number", "number"]],
  "side": "number",
  "rows": "number",
  "columns": "number",
  "stats": ["string"],
  "states": ["string"],
  "places": ["number"],
  "importance": {
    "scale": {"log": "boolean", "low": "number", "high": "number", "bits": "number", "step": "number"},
    "blocks": ["string"]
  },
  "received": [["number"]],
  "channels": [
    {
      "name": "string",
      "title": "string",
      "colour_range": ["number", "number"],
      "scale": {"log": "boolean", "low": "number", "high": "number", "bits": "number", "step": "number"},
      "blocks": [{"*": "string"}]
    }
  ],
  "slot_blocks": [{"*": "string"}],
  "pair_blocks": {"*": "string"},
  "themes": {
    "light": {"sequential": ["string"], "diverging": ["string"], "axis": "string", "mark": "string"},
    "dark": {"sequential": ["string"], "diverging": ["string"], "axis": "string", "mark": "string"}
  }
};

/** Writes the reason at the top of the page and stops the script. */
function refuse(reason) {
  const message = `This page cannot be drawn: ${reason}. Make the page again with one version of sinkinterp.`;
  document.getElementById("lead").textContent = message;
  throw new Error(message);
}

/** The value, if it has the type; if not, the page is refused. */
function checked(value, type, path = "data") {
  if (Array.isArray(type)) return checkedList(value, type, path);
  if (typeof type === "object") return checkedRecord(value, type, path);
  if (typeof value !== type) refuse(`${path} is not a ${type}`);
  return value;
}

function checkedList(list, type, path) {
  if (!Array.isArray(list)) refuse(`${path} is not a list`);
  if (type.length > 1 && list.length !== type.length) refuse(`${path} has ${list.length} parts, not ${type.length}`);
  return list.map((part, i) => checked(part, type[type.length > 1 ? i : 0], `${path}[${i}]`));
}

function checkedRecord(record, type, path) {
  if (record === null || typeof record !== "object" || Array.isArray(record)) refuse(`${path} is not a record`);
  const isMapping = "*" in type, fields = {};
  for (const name of Object.keys(isMapping ? record : { ...type, ...record })) {
    if (!Object.hasOwn(record, name)) refuse(`${path}.${name} is missing`);
    if (!isMapping && !Object.hasOwn(type, name)) refuse(`${path}.${name} is not known to the script`);
    fields[name] = checked(record[name], isMapping ? type["*"] : type[name], `${path}.${name}`);
  }
  return new Proxy(fields, { get: (target, name) => read(target, name, path) });
}

/** A field. The page is refused where a script reads one that the type does not have. */
function read(fields, name, path) {
  if (typeof name === "string" && !(name in fields)) refuse(`a script reads ${path}.${name}, which does not exist`);
  return fields[name];
}
