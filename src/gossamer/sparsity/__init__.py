"""Who is active: the criteria, allocations and rules that choose and move the active entries."""
