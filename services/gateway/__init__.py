"""The gateway: the northbound REST interface, and the read model behind it."""
