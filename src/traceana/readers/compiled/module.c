/* The module of the compiled scanner: what Python calls. */

#include "scanner.h"

/* Increased where an older library does not do what Python expects now. */
enum { VERSION = 3 };

static PyMethodDef methods[] = {
    {"json_plan", json_plan, METH_VARARGS, "Return the plan of a scan: keys, columns of frames, rules."},
    {"json_events", json_events, METH_VARARGS, "Return the columns of the events in text[:stop], None if refused."},
    {"xplane_events", xplane_events, METH_VARARGS, "Fill the columns with some events; return the numbers of rows."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_scanner", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__scanner(void)
{
    return PyModuleDef_Init(&definition);
}
