// What must survive a crash of this program: its incarnation, the epochs it has seen, the runs it has begun, and the
// reports not yet acknowledged by the broker. One small JSON file, replaced as a whole.
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs';
import path from 'node:path';

export class Ledger {
  constructor(directory) {
    mkdirSync(directory, { recursive: true });
    this.file = path.join(directory, 'ledger.json');
    const empty = { incarnation: 0, units: {}, running: {}, reports: [] };
    try {
      Object.assign(this, empty, JSON.parse(readFileSync(this.file, 'utf8')));
    } catch (error) {
      if (error.code !== 'ENOENT') throw error; // a damaged ledger must be looked at: without it runs could start twice
      Object.assign(this, empty);
    }
    // Greater than before even when this file was lost: an agent that counts backwards is not heard.
    this.incarnation = Math.max(this.incarnation + 1, Math.floor(Date.now() / 1000));
    this.save();
  }

  save() {
    const { incarnation, units, running } = this;
    const reports = this.reports.filter((report) => report.durable);
    const file = openSync(`${this.file}.new`, 'w');
    writeSync(file, JSON.stringify({ incarnation, units, running, reports }));
    fsyncSync(file);
    closeSync(file);
    renameSync(`${this.file}.new`, this.file);
  }
}
