// A third-party cloud that joins Meridian over Kafka alone: it reports its inventory and its pulse, takes the
// assignments of its domain and executes them. Settings: the environment variables read below. See README.md.
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Kafka, Partitioners, logLevel } from 'kafkajs';
import { Contracts } from './contracts.js';
import { Ledger } from './ledger.js';
import { Runs } from './runs.js';

const here = import.meta.dirname;
const setting = (name, fallback) => process.env[name] ?? fallback;
const brokers = setting('MERIDIAN_KAFKA_BOOTSTRAP_SERVERS', '127.0.0.1:9092').split(',');
const dataDir = path.resolve(setting('PARTNER_DATA_DIR', 'partner-data'));
const mode = setting('PARTNER_EVENT_MODE', 'protobuf'); // or 'structured': reports as JSON, no protobuf encoder needed
const lease_s = Number(setting('PARTNER_LEASE_S', '10'));
const [reportEvery_s, beatEvery_s] = [5, 0.2];
const ASSIGNMENT = 'meridian.run.v1.Assignment';

const domain = JSON.parse(readFileSync(setting('PARTNER_INVENTORY', path.join(here, 'inventory.json')), 'utf8'));
const contracts = new Contracts(path.resolve(setting('MERIDIAN_CONTRACTS', path.join(here, '../..'))));
const ledger = new Ledger(dataDir);
const source = `/clouds/${domain.domain_id}`;
const who = { domain_id: domain.domain_id, agent_id: `${domain.domain_id}-agent`, incarnation: ledger.incarnation };
const log = (message, extra = {}) => console.error(JSON.stringify({ time: new Date().toISOString(), message, ...extra }));
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

const kafka = new Kafka({ clientId: who.agent_id, brokers, connectionTimeout: 3000, requestTimeout: 10000, logLevel: logLevel.ERROR });
const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, retry: { initialRetryTime: 100, retries: 1 } });
// The group and the ledger belong together: a new ledger with an old group would forget which epochs have started.
const consumer = kafka.consumer({ groupId: `${domain.domain_id}.assignments`, sessionTimeout: 6000, heartbeatInterval: 1000, maxWaitTimeInMs: 500, retry: { retries: 1000, maxRetryTime: 5000 } });

// Contact counts from when an acknowledged record was sent: then our lease runs out before others think it has.
const endRunsAfter_ms = Math.max(lease_s - 1, lease_s / 2) * 1000;
let lastContact_ms = Date.now();
let stopping = false;
let announceStop;
const stopped = new Promise((resolve) => { announceStop = resolve; });
const publish = async ({ topic, message }) => {
  const sent_ms = Date.now();
  await producer.send({ topic, messages: [message], acks: -1 });
  lastContact_ms = Math.max(lastContact_ms, sent_ms);
  if (Date.now() - lastContact_ms < endRunsAfter_ms) runs.contactRegained();
};

/** Reports about runs leave one by one in their order; what the broker has not acknowledged is sent again. */
const report = (name, data, { durable = true } = {}) => {
  ledger.reports.push({ id: randomUUID(), name, data, durable });
  if (durable) ledger.save();
};
const runs = new Runs({ domain, dataDir, lease_s, ledger, report });

async function sendReports() {
  while (!stopping || ledger.reports.length) {
    const [next] = ledger.reports;
    if (!next) {
      await sleep(0.02);
      continue;
    }
    try {
      await publish(contracts.encode(next.name, next.data, { source, id: next.id, mode }));
      ledger.reports.shift();
      if (next.durable) ledger.save();
    } catch (error) {
      log('a report waits', { error: error.message });
      await sleep(0.5);
    }
  }
}

async function repeat(interval_s, event) {
  while (!stopping) {
    const due_ms = Date.now() + interval_s * 1000;
    const { name, data } = event();
    await publish(contracts.encode(name, data, { source, mode })).catch((error) => log('not sent', { name, error: error.message }));
    await Promise.race([stopped, sleep(Math.max(0, due_ms - Date.now()) / 1000)]);
  }
}

let sequence = 0;
const heartbeat = () => ({
  name: 'meridian.resource.v1.Heartbeat',
  data: {
    ...who, sequence: ++sequence, sent_at: new Date().toISOString(), interval_s: beatEvery_s, lease_s,
    nodes: domain.nodes.map(({ node_id }) => ({
      node_id, incarnation: who.incarnation, age_s: 0, state: 'NODE_PROCESS_STATE_RUNNING', run_ids: runs.on(node_id),
    })),
  },
});

const inventory = () => {
  const reading = (node_id, metric, unit, value) => ({
    node_id, metric, unit, value, observed_at: new Date().toISOString(),
    source: 'READING_SOURCE_DIRECTLY_MEASURED', statistic: 'READING_STATISTIC_CURRENT',
  });
  const readings = domain.nodes.flatMap(({ node_id }) => [
    reading(node_id, 'system.cpu.load_average.1m', '1', os.loadavg()[0]),
    reading(node_id, 'system.memory.usage', 'By', os.totalmem() - os.freemem()),
  ]);
  return { name: 'meridian.resource.v1.ResourceReported', data: { ...who, inventory: domain, readings, reported_at: new Date().toISOString() } };
};

async function stop(signal) {
  log('stopping', { signal });
  await consumer.disconnect();
  await runs.close();
  stopping = true;
  announceStop();
}

await producer.connect();
await consumer.connect();
const topic = contracts.rules(ASSIGNMENT).topic;
await consumer.subscribe({ topic, fromBeginning: true });
runs.endLeftovers();
const sending = [sendReports(), repeat(reportEvery_s, inventory), repeat(beatEvery_s, heartbeat)];
const watch = setInterval(() => Date.now() - lastContact_ms >= endRunsAfter_ms && runs.contactLost(), 100);
await consumer.run({
  eachMessage: async ({ message, partition }) => {
    try {
      const event = contracts.decode(message);
      if (event?.name === ASSIGNMENT && event.data.domain_id === domain.domain_id) await runs.handle(event.data);
    } catch (error) {
      log('a record was passed over', { partition, offset: message.offset, error: error.message });
    }
  },
});
log('joined', { domain: domain.domain_id, incarnation: who.incarnation, mode });
process.once('SIGTERM', stop).once('SIGINT', stop);
await Promise.all(sending);
clearInterval(watch);
await producer.disconnect();
process.exit(0); // not waiting for timers that nobody waits for
