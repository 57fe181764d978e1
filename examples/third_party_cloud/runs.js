// Executes assignments as processes and keeps the obligations of an agent (the comment at the top of run.proto):
// an epoch starts once, a stale one is refused, a newer one ends the older, a lost lease ends everything.
import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { constants } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';

const INHERITED = ['PATH', 'HOME', 'LANG', 'TMPDIR', 'LD_LIBRARY_PATH'];
const TAIL_LINES = 40;

const now = () => new Date().toISOString();
const identity = ({ run_id, job_id, unit_index, epoch, domain_id }) => ({ run_id, job_id, unit_index, epoch, domain_id });

/** Signal a rank with all its children: each rank leads a process group. */
function signalGroup(pid, signal) {
  try {
    process.kill(-pid, signal);
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
  }
}

export class Runs {
  constructor({ domain, dataDir, lease_s, ledger, report }) {
    Object.assign(this, { nodes: new Set(domain.nodes.map((node) => node.node_id)), dataDir, lease_s, ledger, report });
    this.active = new Map();
    this.inContact = true;
    this.contactSince_s = Date.now() / 1000;
  }

  /** End what an earlier incarnation of this program left behind. */
  endLeftovers() {
    for (const { run, pids } of Object.values(this.ledger.running)) {
      pids.filter((pid) => belongsTo(pid, run.run_id)).forEach((pid) => signalGroup(pid, 'SIGKILL'));
      this.fail(run, { kind: 'RUN_FAILURE_KIND_AGENT_RESTARTED', reason: 'the cloud was restarted' });
    }
  }

  async handle(order) {
    if (order.action === 'ASSIGNMENT_ACTION_START') await this.start(order);
    if (order.action === 'ASSIGNMENT_ACTION_STOP') this.stop(order);
  }

  async start(order) {
    const unit = `${order.job_id}/${order.unit_index}`;
    const seen = this.ledger.units[unit];
    if (seen?.run_id === order.run_id && seen.epoch === order.epoch) return; // delivered again
    if (seen && order.epoch <= seen.epoch) {
      return this.fail(order, { kind: 'RUN_FAILURE_KIND_REFUSED', reason: `epoch ${order.epoch} is stale: ${seen.epoch} was seen` });
    }
    if (order.assigned_at && Number(order.assigned_at.seconds) + this.lease_s < this.contactSince_s) {
      return this.fail(order, { kind: 'RUN_FAILURE_KIND_REFUSED', reason: 'ordered while this cloud was out of contact for longer than its lease' });
    }
    this.ledger.units[unit] = { epoch: order.epoch, run_id: order.run_id };
    this.ledger.running[order.run_id] = { run: identity(order), pids: [] };
    this.ledger.save(); // before anything starts
    await Promise.all(this.ofUnit(order).map((run) => run.stop('RUN_FAILURE_KIND_STOPPED', `superseded by epoch ${order.epoch}`, 0)));
    const stranger = order.ranks.find((rank) => !this.nodes.has(rank.node_id));
    if (stranger) return this.fail(order, { kind: 'RUN_FAILURE_KIND_NOT_STARTABLE', reason: `no node ${stranger.node_id} here`, rank: stranger.rank });
    if (!this.inContact) return this.fail(order, { kind: 'RUN_FAILURE_KIND_LEASE_EXPIRED', reason: 'no contact to the bus' });
    try {
      this.active.set(order.run_id, new Run(order, this));
    } catch (error) {
      this.fail(order, { kind: 'RUN_FAILURE_KIND_NOT_STARTABLE', reason: error.message });
    }
  }

  stop(order) {
    const unit = `${order.job_id}/${order.unit_index}`;
    if (order.epoch > (this.ledger.units[unit]?.epoch ?? 0)) {
      this.ledger.units[unit] = { epoch: order.epoch, run_id: '' }; // a START of it that comes late is refused
      this.ledger.save();
    }
    const older = this.ofUnit(order).filter((run) => run.order.epoch <= order.epoch);
    older.forEach((run) => run.stop('RUN_FAILURE_KIND_STOPPED', order.reason || 'stop was ordered', order.grace_s));
  }

  contactRegained() {
    if (!this.inContact) this.contactSince_s = Date.now() / 1000;
    this.inContact = true;
  }

  contactLost() {
    this.inContact = false;
    this.active.forEach((run) => run.stop('RUN_FAILURE_KIND_LEASE_EXPIRED', 'no contact to the bus', 0));
  }

  async close() {
    await Promise.all([...this.active.values()].map((run) => run.stop('RUN_FAILURE_KIND_AGENT_RESTARTED', 'the cloud shuts down', 2)));
  }

  on(nodeId) {
    return [...this.active.values()].filter((run) => run.order.ranks.some((rank) => rank.node_id === nodeId)).map((run) => run.order.run_id);
  }

  ofUnit({ job_id, unit_index }) {
    return [...this.active.values()].filter(({ order }) => order.job_id === job_id && order.unit_index === unit_index);
  }

  started(run, pids) {
    this.ledger.running[run.order.run_id].pids = pids;
    this.report('meridian.run.v1.RunStarted', { ...identity(run.order), at: now(), node_ids: [...new Set(run.order.ranks.map((rank) => rank.node_id))] });
  }

  fail(order, failure) {
    if (failure.kind !== 'RUN_FAILURE_KIND_REFUSED') this.forget(order);
    this.report('meridian.run.v1.RunFailed', { ...identity(order), at: now(), ...failure });
  }

  finish(order) {
    this.forget(order);
    this.report('meridian.run.v1.RunFinished', { ...identity(order), at: now() });
  }

  forget({ run_id }) {
    this.active.delete(run_id);
    delete this.ledger.running[run_id];
  }
}

/** Whether the process is still the one that was started for the run (numbers are used again). Linux only. */
function belongsTo(pid, runId) {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(`MERIDIAN_RUN_ID=${runId}`);
  } catch {
    return false;
  }
}

/** One run: all its ranks of this domain, ended together. */
class Run {
  constructor(order, runs) {
    Object.assign(this, { order, runs, cause: null, tail: [], timers: [] });
    this.children = order.ranks.map((rank) => this.spawnRank(rank));
    const alive = this.children.filter((child) => child.pid);
    if (alive.length === order.ranks.length) runs.started(this, alive.map((child) => child.pid));
    if (order.max_run_time_s > 0) {
      const limit = () => this.stop('RUN_FAILURE_KIND_TIME_LIMIT', `ran for ${order.max_run_time_s} s`, 5);
      this.timers.push(setTimeout(limit, order.max_run_time_s * 1000));
    }
    this.ended = Promise.all(this.children.map((child) => child.closed)).then(() => {
      this.timers.forEach(clearTimeout);
      if (this.cause) runs.fail(order, { log_tail: this.tail.join('\n'), ...this.cause });
      else runs.finish(order);
    });
  }

  spawnRank(rank) {
    const { order } = this;
    const [program, ...args] = order.command;
    const cwd = order.working_dir || path.join(this.runs.dataDir, 'work', order.run_id);
    const checkpoints = path.join(this.runs.dataDir, 'checkpoints', order.job_id, String(order.unit_index));
    if (!order.working_dir) mkdirSync(cwd, { recursive: true });
    mkdirSync(checkpoints, { recursive: true });
    const env = {
      ...Object.fromEntries(INHERITED.filter((name) => name in process.env).map((name) => [name, process.env[name]])),
      PYTHONUNBUFFERED: '1', ...order.env,
      MERIDIAN_JOB_ID: order.job_id, MERIDIAN_RUN_ID: order.run_id, MERIDIAN_EPOCH: `${order.epoch}`,
      MERIDIAN_DOMAIN: order.domain_id, MERIDIAN_NODE: rank.node_id, MERIDIAN_ACCELERATORS: rank.accelerator_indices.join(','),
      MERIDIAN_CHECKPOINT_DIR: checkpoints, MERIDIAN_RESTORE_FROM: order.restore_from, MERIDIAN_WORK_DIR: cwd,
      MERIDIAN_ARRAY_INDEX: `${order.array_index ?? ''}`, MERIDIAN_SERVICE_PORT: `${order.service_port || ''}`,
      RANK: `${rank.rank}`, WORLD_SIZE: `${order.world_size}`, LOCAL_RANK: `${rank.local_rank}`,
      LOCAL_WORLD_SIZE: `${order.ranks.filter((other) => other.node_id === rank.node_id).length}`,
      MASTER_ADDR: order.master_addr, MASTER_PORT: `${order.master_port}`, OMP_NUM_THREADS: '1',
    };
    const child = spawn(program, args, { cwd, env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
    createInterface({ input: child.stdout }).on('line', (line) => this.read(line));
    createInterface({ input: child.stderr }).on('line', (line) => this.log(line));
    child.on('error', (error) => this.fall({ kind: 'RUN_FAILURE_KIND_NOT_STARTABLE', reason: error.message, rank: rank.rank, node_id: rank.node_id }));
    child.on('exit', (exit_code, name) => {
      signalGroup(child.pid, 'SIGKILL'); // children that the rank left behind
      if (exit_code !== 0) {
        const how = name ? `was ended by ${name}` : `ended with exit code ${exit_code}`;
        this.fall({ kind: 'RUN_FAILURE_KIND_PROGRAM', reason: `rank ${rank.rank} ${how}`, rank: rank.rank, node_id: rank.node_id, exit_code, signal: name && constants.signals[name] });
      }
    });
    child.closed = new Promise((resolve) => child.on('close', resolve));
    return child;
  }

  /** A line of output: reports of the program protocol (docs/program-protocol.md) become events, the rest is log. */
  read(line) {
    const { report } = this.runs;
    if (!line.startsWith('@meridian ')) return this.log(line);
    try {
      const { progress, checkpoint } = JSON.parse(line.slice('@meridian '.length));
      const head = { ...identity(this.order), at: now() };
      if (progress) report('meridian.run.v1.RunProgress', { ...head, step: progress.step, total_steps: progress.total_steps ?? 0, metrics: progress.metrics ?? {} }, { durable: false });
      else if (checkpoint) report('meridian.run.v1.RunCheckpointed', { ...head, step: checkpoint.step, path: checkpoint.path });
    } catch {
      this.log(line);
    }
  }

  log(line) {
    this.tail = [...this.tail, line].slice(-TAIL_LINES);
  }

  /** A rank is lost: the first cause counts, the other ranks are stopped. */
  fall(cause) {
    if (!this.cause) this.end(cause, 2);
  }

  stop(kind, reason, grace_s) {
    if (!this.cause) this.end({ kind, reason }, grace_s);
    return this.ended;
  }

  end(cause, grace_s) {
    this.cause = cause;
    const signal = (name) => this.children?.forEach((child) => child.pid && child.exitCode === null && child.signalCode === null && signalGroup(child.pid, name));
    signal(grace_s > 0 ? 'SIGTERM' : 'SIGKILL');
    if (grace_s > 0) this.timers.push(setTimeout(signal, grace_s * 1000, 'SIGKILL'));
  }
}
