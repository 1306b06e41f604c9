"""From samples of GPUs to proposals about their health: rules as data, a pure reducer, and a worker around it."""
