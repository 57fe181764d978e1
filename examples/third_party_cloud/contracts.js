// The contracts at run time: docs/asyncapi.json names the events and their .proto files, each event's option names its
// topic and key. Nothing here is written for one event, and nothing comes from Meridian's code. Events are plain objects
// in the form of ProtoJSON: times are RFC 3339 texts, enums their names.
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import protobuf from 'protobufjs';
import protojson from 'protobufjs/ext/protojson.js';

const BUNDLED = path.dirname(createRequire(import.meta.url).resolve('protobufjs/package.json'));
const PLAIN = { longs: Number, enums: String, defaults: true };

export class Contracts {
  constructor(root) {
    const document = JSON.parse(readFileSync(path.join(root, 'docs/asyncapi.json'), 'utf8'));
    this.schema = new protobuf.Root();
    this.schema.resolvePath = (_origin, file) =>
      path.join(...(file.startsWith('google/') ? [BUNDLED, file] : file.startsWith('proto/') ? [root, file] : [root, 'proto', file]));
    const files = Object.values(document.components.messages).map((message) => message['x-protobuf'].file);
    this.schema.loadSync([...new Set(files)], { keepCase: true });
    this.schema.resolveAll();
  }

  /** Topic and key field of an event, from its option in the .proto file. */
  rules(name) {
    return this.schema.lookupType(name).parsedOptions.map((option) => option['(meridian.options.v1.event)']).find(Boolean);
  }

  /** A Kafka record `{topic, message}` for an event; `mode` is 'protobuf' (binary mode) or 'structured' (JSON only). */
  encode(name, data, { source, id = randomUUID(), mode = 'protobuf', traceparent }) {
    const type = this.schema.lookupType(name);
    const { topic, key } = this.rules(name);
    const event = { specversion: '1.0', id, type: name, source, time: new Date().toISOString(), subject: data[key] };
    const trace = traceparent ? { traceparent } : {};
    if (mode === 'structured') {
      const value = JSON.stringify({ ...event, datacontenttype: 'application/json', data });
      return { topic, message: { key: data[key], value, headers: { 'content-type': 'application/cloudevents+json', ...trace } } };
    }
    const attributes = Object.entries(event).map(([attribute, value]) => [`ce_${attribute}`, value]);
    const headers = { ...Object.fromEntries(attributes), 'content-type': 'application/protobuf', ...trace };
    return { topic, message: { key: data[key], value: Buffer.from(type.encode(protojson.fromJson(type, data)).finish()), headers } };
  }

  /** The event of a record as `{name, id, data}`, or null when it is not in binary mode with protobuf. */
  decode({ value, headers }) {
    const header = (name) => headers[name]?.toString() ?? '';
    if (!value || header('content-type') !== 'application/protobuf') return null;
    const type = this.schema.lookupType(header('ce_type'));
    return { name: header('ce_type'), id: header('ce_id'), traceparent: header('traceparent'), data: type.toObject(type.decode(value), PLAIN) };
  }
}
