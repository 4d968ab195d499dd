// A browser for tests in Python: reads a command per line, as JSON, and answers each with a line. Notes all that a page
// fetches, what it receives, and what it writes to its console.
//
//   node drive.mjs chrome|firefox PROGRAM PROFILE
//   {"do": "open", "url": …}  {"do": "evaluate", "code": …}  {"do": "press", "key": …}  …
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import puppeteer from "puppeteer-core";

const [kind, program, profile] = process.argv.slice(2);
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
const chrome = { browser: "chrome", protocol: "webDriverBiDi", args: FLAGS, userDataDir: profile };
const browser = await puppeteer.launch({ ...(kind === "firefox" ? { browser: "firefox", headless: true } : chrome), executablePath: program, defaultViewport: null });
let page, seen, profiler;

async function fresh() {
  await page?.close();
  page = await browser.newPage();
  profiler = null;
  seen = { console: [], urls: [], failed: [] };
  page.on("console", (message) => ["error", "warn", "warning"].includes(message.type()) && seen.console.push(message.text()));
  page.on("pageerror", (error) => seen.console.push(String(error.message)));
  page.on("request", (request) => seen.urls.push(request.url()));
}

const commands = {
  async open({ url }) {
    await fresh();
    await page.goto(url);
  },
  reload: () => page.reload(),
  evaluate: ({ code }) => page.evaluate(code),
  async press({ key, times = 1 }) {
    for (let number = 0; number < times; number++) await page.keyboard.press(key);
  },
  type: ({ text }) => page.keyboard.type(text),
  async screenshot({ path, width, height }) {
    if (width) await page.setViewport({ width, height });
    await new Promise((done) => setTimeout(done, 700));
    await page.screenshot({ path });
  },
  scheme: ({ value }) => page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]),
  // Into a world of its own with the page's policy: axe is not part of the page.
  async axe() {
    await page.evaluate(AXE);
    return page.evaluate("axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(' | ')}`))");
  },
  // Chromium only: processor seconds of its main thread, by sort of work.
  async metrics() {
    if (!profiler) {
      profiler = await page.createCDPSession();
      await profiler.send("Performance.enable", { timeDomain: "threadTicks" });
    }
    const { metrics } = await profiler.send("Performance.getMetrics");
    return Object.fromEntries(metrics.map((one) => [one.name, one.value]));
  },
  seen: () => seen,
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command.do](command)) ?? null };
  } catch (error) {
    answer = { error: String(error?.message ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
