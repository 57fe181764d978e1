"""The probe program: short runs on a member's own hardware, whose results enter the compute index."""
