// Logs decisions of a recommender as events of streameval. Try it: java Decisions.java 1000 > log.ndjson
//
// With Kafka (org.apache.kafka:kafka-clients), replace `write` by
//   producer.send(new ProducerRecord<>("interactions", event.getBytes(StandardCharsets.UTF_8)));
// of a KafkaProducer<String, byte[]> with enable.idempotence=true, acks=all and linger.ms=20.

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.UUID;
import java.util.stream.Collectors;

public class Decisions {
    static final double EXPLORATION = 0.2; // no propensity is below this divided by the number of actions
    static final SplittableRandom RANDOM = new SplittableRandom();

    /** Probabilities that grow with the scores, with a share of uniformly random choices. */
    static double[] policy(double[] scores, double exploration) {
        double largest = Arrays.stream(scores).max().orElseThrow();
        double[] weights = Arrays.stream(scores).map(score -> Math.exp(score - largest)).toArray();
        double total = Arrays.stream(weights).sum();
        return Arrays.stream(weights)
                .map(weight -> (1 - exploration) * weight / total + exploration / scores.length)
                .toArray();
    }

    /** An index, drawn from the probabilities that are logged. */
    static int draw(double[] probabilities) {
        double left = RANDOM.nextDouble();
        for (int place = 0; place < probabilities.length - 1; place++) {
            left -= probabilities[place];
            if (left < 0) {
                return place;
            }
        }
        return probabilities.length - 1;
    }

    static String event(List<String> actions, double[] propensities, double[] challenger, int chosen, double reward) {
        String names = actions.stream().map(name -> '"' + name + '"').collect(Collectors.joining(","));
        return "{\"event_id\":\"" + UUID.randomUUID() + "\""
                + ",\"timestamp\":" + System.currentTimeMillis() / 1000.0
                + ",\"action\":\"" + actions.get(chosen) + "\""
                + ",\"actions\":[" + names + "]"
                + ",\"propensities\":" + Arrays.toString(propensities)
                + ",\"policies\":{\"challenger\":" + Arrays.toString(challenger) + "}"
                + ",\"reward\":" + reward + "}";
    }

    static void write(String event) {
        System.out.println(event);
    }

    public static void main(String[] arguments) {
        List<String> actions = List.of("news", "sport", "music"); // after every filter and business rule
        double[] propensities = policy(new double[] {1.2, 0.4, 0.0}, EXPLORATION);
        double[] challenger = policy(new double[] {0.2, 1.4, 0.3}, EXPLORATION);
        for (int event = 0; event < Integer.parseInt(arguments[0]); event++) {
            int chosen = draw(propensities);
            double reward = RANDOM.nextDouble() < 0.1 + 0.1 * chosen ? 1 : 0; // a click
            write(event(actions, propensities, challenger, chosen, reward));
        }
    }
}
