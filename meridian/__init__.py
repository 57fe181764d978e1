"""The kernel of Meridian: what every service and agent stands on. It knows no domain logic."""
