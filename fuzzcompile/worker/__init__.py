"""What a worker process runs: judge a case, shrink a finding, reset what a case changed."""
