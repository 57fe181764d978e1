"""The state of nodes by a trained model, and its part beside the rules of `services.graph.node_state`."""
