"""nvprof and the Visual Profiler: their databases (.nvvp, .nvprof, .prof, .sql)."""
