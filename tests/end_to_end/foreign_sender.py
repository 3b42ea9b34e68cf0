"""Sends three GPUs' metrics with OpenTelemetry's own SDK, as a program nobody here wrote would.

    foreign_sender.py http/protobuf|grpc ENDPOINT PREFIX

Ends with 0 only when every export was answered with success: what was sent is then the server's.
"""

import sys

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

GPUS = 3
WATTS = 321.0

protocol, endpoint, prefix = sys.argv[1:]
if protocol == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(endpoint=endpoint, insecure=True)
else:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(endpoint=endpoint + "/v1/metrics")

results = []
export = exporter.export


def kept(*arguments, **named):
    """Exports and remembers how it went: the SDK only logs a failure."""
    result = export(*arguments, **named)
    results.append(result)
    return result


exporter.export = kept


def per_gpu(value, step):
    """One observation per GPU."""
    return lambda options: [
        Observation(value + step * index, {"hw.id": f"GPU-{prefix}-{index}", "hw.type": "gpu"})
        for index in range(GPUS)
    ]


reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
provider = MeterProvider(
    metric_readers=[reader],
    resource=Resource.create({"service.name": "foreign", "host.name": f"node-{prefix}"}),
)
meter = provider.get_meter("foreign")
meter.create_observable_gauge("hw.power", callbacks=[per_gpu(WATTS, 1.0)], unit="W")
meter.create_observable_gauge("hw.gpu.utilization", callbacks=[per_gpu(0.5, 0.0)], unit="1")
provider.force_flush()
assert results and all(it is MetricExportResult.SUCCESS for it in results), results
provider.shutdown()
