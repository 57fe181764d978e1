"""The part of Meridian that runs inside a member domain: it senses machines and runs what was assigned to them."""
