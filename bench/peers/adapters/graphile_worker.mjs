// Graphile Worker. The preset is the one its documentation measures with: local queue, batched completion and failure.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { Drain, Latency, analyze, chunks, jobs, mode, settings, url } from "./common.mjs";

const { concurrentJobs, maxPoolSize, localQueue, completeJobBatchDelay, failJobBatchDelay } = settings;
const batching = { localQueue, completeJobBatchDelay, failJobBatchDelay };
const preset = {
  worker: { connectionString: url, concurrentJobs, maxPoolSize, ...batching, logger: new Logger(() => () => {}) },
};
const left = "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs) AS left";

const utils = await makeWorkerUtils({ preset });
await utils.migrate();
const start = (measure) =>
  run({ preset, taskList: { nothing: async (payload) => measure.ranOne(payload.n) }, noHandleSignals: true });

if (mode === "drain") {
  for (const some of chunks(jobs, 5000)) {
    await utils.addJobs(some.map((n) => ({ identifier: "nothing", payload: { n } })));
  }
  await analyze();
  const drain = new Drain(jobs);
  const runner = await start(drain);
  await drain.finish(left);
  await runner.stop();
} else {
  const latency = new Latency();
  const runner = await start(latency);
  await latency.finish((n) => utils.addJob("nothing", { n }));
  await runner.stop();
}
await utils.release();
process.exit(0);
