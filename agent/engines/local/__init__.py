"""The local engine: node processes on this machine stand for the machines of the domain, ranks are their children."""
