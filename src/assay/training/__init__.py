"""The loop, one optimisation step, checkpoints, schedules, distribution. Reports and evaluates through callables that
it is handed; never imports monitoring, evaluation, config or cli."""
