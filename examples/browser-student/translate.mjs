// node translate.mjs FOLDER WORKER [html] < lines      translates as the page in FOLDER does, with the engine in WORKER
import {readFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {Worker} from "node:worker_threads";

const [folder, engine, html] = process.argv.slice(2);
const {from, to, model, vocabularies, shortlist, config} = JSON.parse(readFileSync(join(folder, "config.json")));
const worker = new Worker(resolve(engine, "translator-worker.js")), waiting = [];
worker.on("message", ({result, error}) => {
  const [accept, reject] = waiting.shift();
  if (error) reject(error); else accept(result);
});
const call = (name, ...args) => new Promise((accept, reject) => {
  waiting.push([accept, reject]);
  worker.postMessage({id: 1, name, args});
});
const bytes = name => name && new Uint8Array(readFileSync(join(folder, name))).buffer;

await call("initialize", {});
await call("loadTranslationModel", {from, to}, {
  model: bytes(model), shortlist: bytes(shortlist), vocabs: vocabularies.map(bytes), config,
});
const texts = readFileSync(0, "utf8").split("\n").slice(0, -1).map(text => ({text, html: html === "html", qualityScores: false}));
for (const {target} of await call("translate", {models: [{from, to}], texts})) console.log(target.text.replaceAll("\n", " "));
await worker.terminate();
