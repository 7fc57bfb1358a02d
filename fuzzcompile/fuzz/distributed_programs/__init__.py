"""Programs that several processes run together: wrapped and planned modules, collectives, tensors in parts."""
