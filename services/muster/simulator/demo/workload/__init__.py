"""What the demo runs, as a person's folder would hold it: a trainer, its configuration, and the files with the jobs."""
