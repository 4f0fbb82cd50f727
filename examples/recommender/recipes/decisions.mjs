// Logs decisions of a recommender as events of streameval. Try it: node decisions.mjs 1000 > log.ndjson
//
// With Kafka (the package @confluentinc/kafka-javascript), replace `write` by
//   producer.produce("interactions", null, Buffer.from(JSON.stringify(event)));
// of a Producer with "enable.idempotence": true and "linger.ms": 20.

import { randomUUID } from "node:crypto";

const EXPLORATION = 0.2; // no propensity is below this divided by the number of actions

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

function write(event) {
  process.stdout.write(JSON.stringify(event) + "\n");
}

const actions = ["news", "sport", "music"]; // after every filter and business rule
const propensities = policy([1.2, 0.4, 0.0]);
const challenger = policy([0.2, 1.4, 0.3]);
for (let count = 0; count < Number(process.argv[2]); count++) {
  const chosen = draw(propensities);
  write({
    event_id: randomUUID(),
    timestamp: Date.now() / 1000, // seconds
    action: actions[chosen],
    actions,
    propensities,
    policies: { challenger },
    reward: Math.random() < 0.1 + 0.1 * chosen ? 1 : 0, // a click
  });
}
