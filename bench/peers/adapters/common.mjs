// What the adapters for Node have in common. See common.py: the same words, the same definitions.
import pg from "pg";

export const [mode, url, count, settingsText] = process.argv.slice(2);
export const jobs = Number(count);
export const settings = JSON.parse(settingsText ?? "{}");
export const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
export const now = () => Number(process.hrtime.bigint()) / 1e9;

export function report(found) {
  process.stdout.write(JSON.stringify({ ...found, node: process.versions.node }) + "\n");
}

// From the start of the first handler until a query sees that nothing is left, as committed.
export class Drain {
  constructor(expected) {
    this.expected = expected;
    this.ran = 0;
    this.began = 0;
    this.done = new Promise((resolve) => (this.resolve = resolve));
  }

  ranOne() {
    if (this.ran === 0) {
      this.began = now();
      this.cpu = process.cpuUsage();
    }
    this.ran += 1;
    if (this.ran === this.expected) this.resolve();
  }

  async finish(unfinished) {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    const deadline = pause(600).then(() => {
      throw new Error(`only ${this.ran} of ${this.expected} jobs ran in 600 s`);
    });
    await Promise.race([this.done, deadline]);
    for (;;) {
      const { rows } = await client.query(unfinished);
      if (!rows[0].left) break;
      await pause(0.002);
    }
    const seconds = now() - this.began;
    const { user, system } = process.cpuUsage(this.cpu);
    await client.end();
    if (this.ran !== this.expected) throw new Error(`${this.ran} runs of ${this.expected} jobs`);
    report({ jobs: this.ran, seconds, cpu: (user + system) / 1e6 });
  }
}

// Jobs one by one at a fixed rate, each committed by its own call; from just before that call to the handler's start.
export class Latency {
  constructor() {
    this.sent = new Map();
    this.waits = [];
  }

  ranOne(n) {
    this.waits.push((now() - this.sent.get(n)) * 1000);
  }

  async finish(enqueue) {
    const rate = settings.rate ?? 50;
    await pause(settings.settle ?? 2);
    const first = now();
    for (let n = 0; n < jobs; n++) {
      const due = first + n / rate;
      if (due > now()) await pause(due - now());
      this.sent.set(n, now());
      await enqueue(n);
    }
    for (let tries = 0; this.waits.length < jobs && tries < 1000; tries++) await pause(0.01);
    if (this.waits.length !== jobs) throw new Error(`${this.waits.length} of ${jobs} jobs ran`);
    const sorted = this.waits.toSorted((a, b) => a - b);
    const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
    report({ jobs, p50: at(0.5), p99: at(0.99) });
  }
}

// After the enqueue, before the worker: statistics as a server that has run for a while has them.
export async function analyze() {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query("VACUUM (ANALYZE)");
  await client.end();
}

export const chunks = function* (total, size) {
  for (let start = 0; start < total; start += size) {
    yield Array.from({ length: Math.min(size, total - start) }, (_, n) => start + n);
  }
};
