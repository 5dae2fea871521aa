// The part of CPython's stable ABI that this extension uses, declared by hand.
//
// Many servers have a compiler but no Python.h (python3-dev is a separate package), and headers of another
// Python would be worse than none. Everything below belongs to the stable ABI of Python 3.2 to 3.10 or older
// (https://docs.python.org/3/c-api/stable.html): the layouts and signatures are frozen for every later
// Python 3 that loads `.abi3.so` files. The buffer protocol is left out on purpose: it joined in 3.11 only.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

typedef std::ptrdiff_t Py_ssize_t;

struct PyTypeObject;
struct PyThreadState;

struct PyObject {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
};

typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *arguments);
typedef void (*PyCapsule_Destructor)(PyObject *capsule);

struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
};

struct PyModuleDef_Base {
    PyObject ob_base;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
};

struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    void *m_slots;
    void *m_traverse;
    void *m_clear;
    void *m_free;
};

extern PyObject *PyExc_RuntimeError;
extern PyObject *PyExc_ValueError;

PyObject *PyModule_Create2(PyModuleDef *definition, int api_version);
int PyArg_ParseTuple(PyObject *arguments, const char *format, ...);
PyObject *Py_BuildValue(const char *format, ...);

int PyBytes_AsStringAndSize(PyObject *object, char **data, Py_ssize_t *size);
PyObject *PyBytes_FromStringAndSize(const char *data, Py_ssize_t size);
PyObject *PyLong_FromLong(long value);
PyObject *PyUnicode_FromString(const char *text);

PyObject *PyCapsule_New(void *pointer, const char *name, PyCapsule_Destructor destructor);
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);

PyObject *PyErr_Format(PyObject *exception, const char *format, ...);
PyObject *PyErr_NoMemory(void);

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

}  // extern "C"

constexpr int METH_VARARGS = 0x0001;
constexpr int METH_NOARGS = 0x0004;
// What `PyModule_Create` passes when Py_LIMITED_API is set: PYTHON_ABI_VERSION.
constexpr int PYTHON_ABI_VERSION = 3;
