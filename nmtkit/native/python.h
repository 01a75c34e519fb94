// What functions of the Python modules share: addresses, capsules, the interpreter lock, exceptions.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <typeinfo>

#include "memory.h"

namespace nmtkit {

using Address = unsigned long long;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// For "O&" of PyArg_ParseTuple: sets a T* to the object in a capsule. Raises ValueError for another object.
template <class T>
int read_capsule(PyObject* capsule, void* result) {
  return (*static_cast<void**>(result) = PyCapsule_GetPointer(capsule, typeid(T).name())) != nullptr;
}

// A capsule that owns the object.
template <class T>
PyObject* to_capsule(std::unique_ptr<T> object) {
  PyObject* capsule = PyCapsule_New(object.get(), typeid(T).name(), [](PyObject* self) {
    delete static_cast<T*>(PyCapsule_GetPointer(self, typeid(T).name()));
  });
  if (capsule) object.release();
  return capsule;
}

// Run f and turn its C++ exception into Python's; false if there was one.
template <class F>
bool catch_exceptions(F f) {
  try {
    f();
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const TooLarge& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::exception&) {  // std::bad_alloc, or std::length_error of a container
    PyErr_NoMemory();
  }
  return !PyErr_Occurred();
}

// The same without the global interpreter lock, for long computations.
template <class F>
bool without_gil(F f) {
  return catch_exceptions([&] {
    const std::unique_ptr<PyThreadState, void (*)(PyThreadState*)> released(PyEval_SaveThread(), PyEval_RestoreThread);
    f();
  });
}

// setup.py defines NMTKIT_SOURCES: `native_sources` compares it with the sources that are there.
#define NMTKIT_TEXT_OF(name) #name
#define NMTKIT_TEXT(name) NMTKIT_TEXT_OF(name)

inline PyObject* make_module(PyModuleDef* definition) {
  PyObject* module = PyModule_Create(definition);
  if (module && PyModule_AddStringConstant(module, "SOURCES", NMTKIT_TEXT(NMTKIT_SOURCES)) < 0) Py_CLEAR(module);
  return module;
}

inline PyObject* none_if(bool done) {
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace nmtkit
