"""Reports of Nsight Systems (.nsys-rep, .qdrep, .qdstrm), exported by the user's own nsys."""
