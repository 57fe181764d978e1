"""The seven services. They meet only on the bus and, where a person waits, over HTTP; none imports another."""
