"""On Kubernetes: the chart's checks and, from the catalog's own kinds, its custom resources."""
