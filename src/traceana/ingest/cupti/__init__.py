"""What the formats share that store CUPTI's activity records (nsys, nvprof)."""
