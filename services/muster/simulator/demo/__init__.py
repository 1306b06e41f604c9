"""`make demo`: a workload on a simulated cluster, its scheduler killed and started again, and what that proved."""
