"""The one-machine stack: a Kafka-wire broker, PostgreSQL, Valkey and the supervisor that keeps them and the services alive."""
