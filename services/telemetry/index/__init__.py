"""The compute index: how fast a chip is at a task, relative to another, with a band and the evidence it rests on."""
