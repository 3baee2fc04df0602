"""The seam to MX servers: lists, metadata and writes over gRPC, and the Kubernetes writer beside it."""
