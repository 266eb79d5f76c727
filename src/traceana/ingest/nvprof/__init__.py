"""The nvprof reader: databases of nvprof and the Visual Profiler (.nvvp, .nvprof, .prof, .sql)."""
