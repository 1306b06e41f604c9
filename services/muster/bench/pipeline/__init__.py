"""`muster bench pipeline`: how fast the whole is, from a client's request to what an agent, or a watching client, sees.

`stack` starts the real programs and `program` counts inside of them; `submitters`, `agents`, `readers` and `watcher` are
clients, each in processes of its own, that speak HTTP; `follow` reads the log as it grows; `parts` are the measurements,
`report` is what comes out of them. Only `stack` knows on which log the stack runs.
"""
