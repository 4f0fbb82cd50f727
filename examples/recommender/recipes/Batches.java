// Logs decisions of a recommender as Arrow batches of streameval. Try it, with the jars of org.apache.arrow:arrow-vector
// and org.apache.arrow:arrow-memory-unsafe in `jars`:
//   java -cp 'jars/*' --add-opens=java.base/java.nio=ALL-UNNAMED Batches.java 1000 > log.arrows
//
// With Kafka (org.apache.kafka:kafka-clients), each message is one batch. Replace `System.out.write` by
//   producer.send(new ProducerRecord<>("interactions", message));
// of a KafkaProducer<String, byte[]> with enable.idempotence=true and acks=all. Write a batch after 500 decisions or
// 200 ms, and on the way out. A process that is killed loses its last batch.

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.UUID;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

public class Batches {
    static final double EXPLORATION = 0.2; // no propensity is below this divided by the number of actions
    static final int SIZE = 500; // decisions in a batch
    static final SplittableRandom RANDOM = new SplittableRandom();
    static final ArrowType TEXT = new ArrowType.Utf8();
    static final ArrowType NUMBER = new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);

    /** The columns, as of `streameval schema arrow streameval.yaml`. */
    static final List<Field> COLUMNS = List.of(
            new Field("event_id", FieldType.notNullable(TEXT), null),
            new Field("timestamp", FieldType.notNullable(NUMBER), null),
            new Field("action", FieldType.notNullable(TEXT), null),
            new Field("propensity", FieldType.notNullable(NUMBER), null),
            new Field("reward", FieldType.notNullable(NUMBER), null),
            new Field("policies", FieldType.nullable(new ArrowType.Struct()),
                    List.of(new Field("challenger", FieldType.nullable(NUMBER), null))));

    /** Probabilities that grow with the scores, with a share of uniformly random choices. */
    static double[] policy(double[] scores) {
        double largest = Arrays.stream(scores).max().orElseThrow();
        double[] weights = Arrays.stream(scores).map(score -> Math.exp(score - largest)).toArray();
        double total = Arrays.stream(weights).sum();
        return Arrays.stream(weights)
                .map(weight -> (1 - EXPLORATION) * weight / total + EXPLORATION / scores.length)
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

    /** The next decisions as a message. */
    static byte[] batch(BufferAllocator memory, int count) throws IOException {
        List<String> actions = List.of("news", "sport", "music"); // after every filter and business rule
        double[] propensities = policy(new double[] {1.2, 0.4, 0.0});
        double[] challenger = policy(new double[] {0.2, 1.4, 0.3});
        Schema schema = new Schema(COLUMNS, Map.of("streameval.events", "" + count)); // lost if the message is damaged
        ByteArrayOutputStream message = new ByteArrayOutputStream();
        try (VectorSchemaRoot root = VectorSchemaRoot.create(schema, memory)) {
            StructVector policies = (StructVector) root.getVector("policies");
            for (int row = 0; row < count; row++) {
                int chosen = draw(propensities);
                double reward = RANDOM.nextDouble() < 0.1 + 0.1 * chosen ? 1 : 0; // a click
                text(root, "event_id", row, UUID.randomUUID().toString());
                number(root, "timestamp", row, System.currentTimeMillis() / 1000.0); // seconds
                text(root, "action", row, actions.get(chosen));
                number(root, "propensity", row, propensities[chosen]);
                number(root, "reward", row, reward);
                policies.setIndexDefined(row);
                policies.getChild("challenger", Float8Vector.class).setSafe(row, challenger[chosen]);
            }
            root.setRowCount(count);
            try (ArrowStreamWriter writer = new ArrowStreamWriter(root, null, Channels.newChannel(message))) {
                writer.writeBatch();
                writer.end();
            }
        }
        return message.toByteArray();
    }

    static void text(VectorSchemaRoot root, String name, int row, String value) {
        ((VarCharVector) root.getVector(name)).setSafe(row, value.getBytes(StandardCharsets.UTF_8));
    }

    static void number(VectorSchemaRoot root, String name, int row, double value) {
        ((Float8Vector) root.getVector(name)).setSafe(row, value);
    }

    public static void main(String[] arguments) throws IOException {
        try (BufferAllocator memory = new RootAllocator()) {
            for (int left = Integer.parseInt(arguments[0]); left > 0; left -= SIZE) {
                byte[] message = batch(memory, Math.min(SIZE, left));
                System.out.write(message, 0, message.length);
            }
            System.out.flush();
        }
    }
}
