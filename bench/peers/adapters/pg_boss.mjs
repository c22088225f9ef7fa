// pg-boss. A handler takes a whole batch here, so there is one call and one completion for as many jobs as were fetched.
import { PgBoss } from "pg-boss";
import { Drain, Latency, analyze, chunks, jobs, mode, settings, url } from "./common.mjs";

const { max, notify, work } = settings;
const boss = new PgBoss({ connectionString: url, max, useListenNotify: notify });
boss.on("error", (error) => {
  throw error;
});
await boss.start();
await boss.createQueue("nothing", { notify });
const left = "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = 'nothing' AND state < 'completed') AS left";

const start = (measure) =>
  boss.work("nothing", work, async (batch) => {
    for (const job of batch) measure.ranOne(job.data.n);
  });

if (mode === "drain") {
  for (const some of chunks(jobs, 5000)) await boss.insert("nothing", some.map((n) => ({ data: { n } })));
  await analyze();
  const drain = new Drain(jobs);
  await start(drain);
  await drain.finish(left);
} else {
  const latency = new Latency();
  await start(latency);
  await latency.finish((n) => boss.send("nothing", { n }));
}
await boss.stop({ graceful: false });
process.exit(0);
