/* What the files of the compiled scanner share; `module.c` makes one module of them. */

#ifndef TRACEANA_SCANNER_H
#define TRACEANA_SCANNER_H

#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned char byte;

/* json_events.c */
PyObject *json_plan(PyObject *module, PyObject *args);
PyObject *json_events(PyObject *module, PyObject *args);

/* xplane_events.c */
PyObject *xplane_events(PyObject *module, PyObject *args);

#endif
