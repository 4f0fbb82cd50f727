// Logs decisions of a recommender as Arrow batches of streameval. Try it, after `npm install apache-arrow`:
//   node batches.mjs 1000 > log.arrows
//
// With Kafka (the package @confluentinc/kafka-javascript), each message is one batch. Replace `process.stdout.write` by
//   producer.produce("interactions", null, Buffer.from(message));
// of a Producer with "enable.idempotence": true. Write a batch after 500 decisions or 200 ms, and on the way out. A
// process that is killed loses its last batch.

import { randomUUID } from "node:crypto";
import { Field, Float64, RecordBatch, Schema, Struct, Table, Utf8, tableToIPC, vectorFromArray } from "apache-arrow";

const EXPLORATION = 0.2; // no propensity is below this divided by the number of actions
const SIZE = 500; // decisions in a batch

// as of `streameval schema arrow streameval.yaml`
const COLUMNS = {
  event_id: new Utf8(),
  timestamp: new Float64(),
  action: new Utf8(),
  propensity: new Float64(),
  reward: new Float64(),
  policies: new Struct([new Field("challenger", new Float64(), true)]),
};

/** Probabilities that grow with the scores, with a share of uniformly random choices. */
function policy(scores) {
  const weights = scores.map((score) => Math.exp(score));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => ((1 - EXPLORATION) * weight) / total + EXPLORATION / scores.length);
}

/** An index, drawn from the probabilities that are logged. */
function draw(probabilities) {
  let left = Math.random();
  const place = probabilities.findIndex((probability) => (left -= probability) < 0);
  return place < 0 ? probabilities.length - 1 : place;
}

/** Decisions as a message. */
function batch(decisions) {
  const vectors = Object.entries(COLUMNS).map(([name, type]) => [
    name,
    vectorFromArray(decisions.map((decision) => decision[name]), type),
  ]);
  const table = new Table(Object.fromEntries(vectors));
  const lost = new Map([["streameval.events", String(decisions.length)]]); // if the message is damaged
  const schema = new Schema(table.schema.fields, lost);
  return tableToIPC(new Table(schema, table.batches.map((part) => new RecordBatch(schema, part.data))), "stream");
}

const actions = ["news", "sport", "music"]; // after every filter and business rule
const propensities = policy([1.2, 0.4, 0.0]);
const challenger = policy([0.2, 1.4, 0.3]);

function decision() {
  const chosen = draw(propensities);
  return {
    event_id: randomUUID(),
    timestamp: Date.now() / 1000, // seconds
    action: actions[chosen],
    propensity: propensities[chosen],
    reward: Math.random() < 0.1 + 0.1 * chosen ? 1 : 0, // a click
    policies: { challenger: challenger[chosen] },
  };
}

for (let left = Number(process.argv[2]); left > 0; left -= SIZE) {
  process.stdout.write(batch(Array.from({ length: Math.min(SIZE, left) }, decision)));
}
