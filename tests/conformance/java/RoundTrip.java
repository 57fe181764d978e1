import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The official Java client against a broker: makes a topic, writes idempotently, reads in a group, commits, looks at it all. */
public class RoundTrip {
  public static void main(String[] arguments) throws Exception {
    String servers = arguments[0];
    String topic = arguments[1];
    int count = Integer.parseInt(arguments[2]);
    Properties common = new Properties();
    common.put("bootstrap.servers", servers);

    try (Admin admin = Admin.create(common)) {
      NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "600000"));
      admin.createTopics(List.of(wanted)).all().get(20, TimeUnit.SECONDS);

      Properties writing = new Properties();
      writing.putAll(common);
      writing.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
      writing.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
      writing.put("compression.type", "lz4");
      try (KafkaProducer<String, String> producer = new KafkaProducer<>(writing)) {
        for (int number = 0; number < count; number++) {
          producer.send(new ProducerRecord<>(topic, "key-" + number % 5, "java-" + number));
        }
        producer.flush();
      }

      Properties reading = new Properties();
      reading.putAll(common);
      reading.put("group.id", topic);
      reading.put("auto.offset.reset", "earliest");
      reading.put("enable.auto.commit", "false");
      reading.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
      reading.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
      List<String> values = new ArrayList<>();
      try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading)) {
        consumer.subscribe(List.of(topic));
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (values.size() < count && System.nanoTime() < deadline) {
          for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
            values.add(record.value());
          }
        }
        consumer.commitSync();
        System.out.println("members " + admin.describeConsumerGroups(List.of(topic)).all()
            .get(20, TimeUnit.SECONDS).get(topic).members().size());
      }
      long committed = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata()
          .get(20, TimeUnit.SECONDS).values().stream().mapToLong(offset -> offset.offset()).sum();
      long end = 0;
      for (int partition = 0; partition < 3; partition++) {
        TopicPartition where = new TopicPartition(topic, partition);
        end += admin.listOffsets(Map.of(where, OffsetSpec.latest())).all().get(20, TimeUnit.SECONDS).get(where).offset();
      }
      ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
      Config config = admin.describeConfigs(List.of(resource)).all().get(20, TimeUnit.SECONDS).get(resource);
      System.out.println("read " + values.stream().distinct().count());
      System.out.println("committed " + committed);
      System.out.println("end " + end);
      System.out.println("retention " + config.get("retention.ms").value());
    }
  }
}
