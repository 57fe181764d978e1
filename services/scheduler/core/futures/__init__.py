"""When waiting units will start: courses of what runs and waits, with run times drawn from what was learned."""
