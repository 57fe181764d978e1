"""A small single-node broker that speaks the Kafka wire protocol, so one machine needs no Java to run the whole system.

Clients, serialisation and consumer-group code are those of production; only ``bootstrap.servers`` differs. Out of scope and
therefore not advertised: replication, transactions, access control, the KIP-848 group protocol.
"""

from meridian.embedded.broker.broker import Broker, BrokerSettings

__all__ = ["Broker", "BrokerSettings"]
