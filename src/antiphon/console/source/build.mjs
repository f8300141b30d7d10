// Builds ../static/console.js from these modules. `node build.mjs --check` says whether the committed file is what they give.
import {createHash} from "node:crypto";
import {readFileSync, readdirSync, writeFileSync} from "node:fs";
import {build} from "esbuild";

const inputs = readdirSync(".").filter(name => /\.js$|^package(-lock)?\.json$|^build\.mjs$/.test(name)).sort();
const digest = createHash("sha256");
for (const name of inputs) digest.update(name + "\0").update(readFileSync(name)).update("\0");

const packages = ["preact", "htm", "@preact/signals", "@preact/signals-core", "uplot"].map(name => {
  const {version, license} = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  return {name, version, license, text: readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()};
});
const made = await build({
  entryPoints: ["main.js"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "utf8",
  legalComments: "none",
  write: false,
});
const names = packages.map(one => `${one.name} ${one.version}`).join(", ");
const body = made.outputFiles[0].text;
const marks = `sources ${digest.digest("hex")}, script ${createHash("sha256").update(body).digest("hex")}`;
const script = `/* antiphon console; with ${names}: see licenses.txt; ${marks} */\n${body}`;
const licenses = "The console contains these packages.\n" +
  packages.map(one => `\n== ${one.name} ${one.version} (${one.license}) ==\n\n${one.text}\n`).join("");

const files = {"../static/console.js": script, "../static/licenses.txt": licenses};
for (const [path, text] of Object.entries(files)) {
  if (!process.argv.includes("--check")) writeFileSync(path, text);
  else if (readFileSync(path, "utf8") !== text) {
    console.error(`${path} is not what its sources give: run make console`);
    process.exitCode = 1;
  }
}
console.log(`console.js: ${Buffer.byteLength(script)} bytes`);
