"""May this request enter? The rule, the limits of keys, what entitlements weigh, and on which account batches run."""
