"""The engine: pure. Facts in, decisions out, by integers and total orders only.

`step` is the door. A pass goes through `decide`, which asks in turn `liveness`, `gate`, `lifecycle` and `passes`; a
waiting job is placed by `place`, or by `preempt` when it may take the place of others.
"""
