import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Starts a run of refold with Kafka's own client and nothing else.
 *
 * <pre>java -cp 'kafka-clients.jar:…' StartRun 127.0.0.1:9092 shop order 4160 order-48211</pre>
 *
 * The Avro body is written by hand, so that one sees what it is made of; with Avro's library and the
 * schema (refold schemas show StartRun) the bytes are the same. Kafka's Java client hashes keys as
 * refold does, so the command reaches the partition of its run at once.
 */
public final class StartRun {
  private static final int SCHEMA_ID = 2_000_002_001;

  public static void main(String[] args) throws Exception {
    if (args.length < 5) {
      System.err.println("usage: StartRun BOOTSTRAP NAMESPACE RUN INPUT_JSON RUN_ID [COMMAND_ID]");
      System.exit(2);
    }
    String bootstrap = args[0], namespace = args[1], run = args[2], inputJson = args[3];
    String runId = args[4];
    String commandId = args.length > 5 ? args[5] : UUID.randomUUID().toString();

    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("acks", "all");
    try (KafkaProducer<String, byte[]> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
      byte[] value = startRun(commandId, runId, run, inputJson, "StartRun.java");
      RecordMetadata stored =
          producer.send(new ProducerRecord<>(namespace + ".commands", runId, value)).get();
      System.out.printf(
          "{\"run_id\": \"%s\", \"command_id\": \"%s\", \"partition\": %d, \"offset\": %d}%n",
          runId, commandId, stored.partition(), stored.offset());
    }
  }

  /** The frame, then the fields of refold.commands.StartRun in their order. */
  static byte[] startRun(String commandId, String runId, String run, String inputJson, String by)
      throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    out.writeByte(0);
    out.writeInt(SCHEMA_ID); // big-endian
    text(out, commandId);
    text(out, runId);
    text(out, run);
    // input, a refold.values.Value
    text(out, ""); // type: plain data
    number(out, 1); // type_version
    text(out, "j1"); // encoding: JSON
    number(out, 0); // key_id: null, the first branch of its union
    number(out, 1); // body: bytes, the second branch
    bytes(out, inputJson.getBytes(StandardCharsets.UTF_8));
    number(out, 0); // ref: null
    number(out, 0); // version: null, whatever the worker offers
    text(out, by);
    return bytes.toByteArray();
  }

  private static void text(DataOutputStream out, String text) throws IOException {
    bytes(out, text.getBytes(StandardCharsets.UTF_8));
  }

  private static void bytes(DataOutputStream out, byte[] bytes) throws IOException {
    number(out, bytes.length);
    out.write(bytes);
  }

  /** A long as Avro writes it: zigzag, seven bits a byte, the lowest first. */
  private static void number(DataOutputStream out, long number) throws IOException {
    long bits = (number << 1) ^ (number >> 63);
    while ((bits & ~0x7FL) != 0) {
      out.writeByte((int) ((bits & 0x7F) | 0x80));
      bits >>>= 7;
    }
    out.writeByte((int) bits);
  }
}
