"""Sends raw bytes as an OTLP metrics request over gRPC, as no generated client would.

    grpc_sender.py ENDPOINT plain|gzip < BYTES

Prints the status code's name and the server's sentence.
"""

import sys

import grpc

endpoint, compression = sys.argv[1:]
channel = grpc.insecure_channel(endpoint)
export = channel.unary_unary("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export")
packed = grpc.Compression.Gzip if compression == "gzip" else grpc.Compression.NoCompression
try:
    export(sys.stdin.buffer.read(), compression=packed, timeout=20)
    print("OK")
except grpc.RpcError as error:
    print(error.code().name, error.details())
