"""The scheduler: queues units of jobs, decides where they run, and follows their runs to the end."""
