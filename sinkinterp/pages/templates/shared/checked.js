"use strict";
// The data of a page, checked against the types that Python declares (schema.py). A field that is missing, or of another
// type, or that a script reads and Python does not write, stops the page with a message.

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
