"""What a domain is advised: its valleys and peaks to come, and which work could shift, and what that saves."""
