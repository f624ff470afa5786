// BullMQ. usage: bullmq_peer.mjs enqueue N | worker CONCURRENCY
import { openSync, writeSync } from "node:fs";
import { Redis } from "ioredis";
import { Queue, Worker } from "bullmq";

const connection = new Redis({
  host: "127.0.0.1",
  port: Number(process.env.PEERS_PORT),
  maxRetriesPerRequest: null,
});
const [mode, number] = process.argv.slice(2).map((word, i) => (i ? Number(word) : word));
const pad = "x".repeat(80);

if (mode === "enqueue") {
  const queue = new Queue("bench", { connection });
  const began = performance.now();
  for (let at = 0; at < number; at += 500) {
    const jobs = [];
    for (let i = at; i < Math.min(number, at + 500); i++)
      jobs.push({ name: "noop", data: { i, pad }, opts: { removeOnComplete: true } });
    await queue.addBulk(jobs);
  }
  console.log(Math.round(number / ((performance.now() - began) / 1000)));
  await queue.close();
  connection.disconnect();
} else {
  // no shared memory here: the count is written now and then, and at every hundredth, so at the last one too
  const file = openSync(process.env.PEERS_TALLY, "r+");
  const cell = Buffer.alloc(8);
  let count = 0n;
  new Worker("bench", async () => {
    count += 1n;
    if (count % 50n === 0n) {
      cell.writeBigUInt64LE(count);
      writeSync(file, cell, 0, 8, 0);
    }
  }, { connection, concurrency: number });
}
