"""Who asks, and whether they may enter: keys, quotas, limits, storms."""
