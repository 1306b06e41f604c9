"""What a program tells Prometheus: names that are declared once, values, and the page at which they are read.

For a program of Muster (a scheduler, an agent, a stream processor) this is all there is to it:

    metrics = Metrics("history", cell="main")                     # once
    metrics.add("muster_history_rows_total", 17, table="jobs")    # a counter goes up
    metrics.set("muster_follower_lag_records", 3, follower="history")
    metrics.observe("muster_history_batch_seconds", 0.02)         # a histogram
    endpoint = await serve(metrics, "127.0.0.1:9464")             # what --metrics HOST:PORT says; in the program's own loop
    ...
    await endpoint.close()

Every name stands in `muster.metrics.catalogue` with its kind, labels and meaning; another name raises `UnknownMetric`, so that
nothing is exposed which docs/metrics.md does not explain. A new metric is a new entry there, and a row in that page
(`python -m muster.metrics` prints the rows). `cell` is a label of everything and is added here.

Values that are kept elsewhere are asked for when the page is: `metrics.source(function)` gives samples,
`metrics.before(coroutine function)` is awaited first. A program that serves HTTP already answers with `await
metrics.page(accept)` instead of `serve`.

Not here: what the figures of a cell are (`muster.measures`), and who may read them at a gateway (its guard). An endpoint of its
own asks for the token in the environment variable MUSTER_METRICS_TOKEN, if there is one.
"""

from muster.metrics.catalogue import Metric
from muster.metrics.endpoint import BadPlace, Endpoint, place_of, serve
from muster.metrics.registry import Histogram, Metrics, Sample, UnknownMetric

__all__ = ["BadPlace", "Endpoint", "Histogram", "Metric", "Metrics", "Sample", "UnknownMetric", "place_of", "serve"]
