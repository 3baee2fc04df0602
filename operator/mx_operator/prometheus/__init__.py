"""The seam to Prometheus and its kin (Thanos, VictoriaMetrics, Mimir): one instant query per signal."""
