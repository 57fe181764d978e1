"""Tables of exporters that come with the agent, one YAML file each (`exporter_table`)."""
