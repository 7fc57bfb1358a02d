"""The worker pool: processes that persist, their slots and task queue, and the reaper that ends them."""
