// What functions of the Python module share: addresses, the interpreter lock, exceptions.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "memory.h"

namespace nmtkit {

using Address = unsigned long long;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// Releases Python's global interpreter lock while it lives.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

// Run f and turn its C++ exception into Python's; false if there was one.
template <class F>
bool catch_exceptions(F f) {
  bool out_of_memory = false;
  std::string bad_index, too_large;
  try {
    f();
  } catch (const std::out_of_range& error) {
    bad_index = error.what();
  } catch (const TooLarge& error) {
    too_large = error.what();
  } catch (const std::exception&) {  // std::bad_alloc, or std::length_error of a container
    out_of_memory = true;
  }
  if (out_of_memory) PyErr_NoMemory();
  if (!bad_index.empty()) PyErr_SetString(PyExc_IndexError, bad_index.c_str());
  if (!too_large.empty()) PyErr_SetString(PyExc_MemoryError, too_large.c_str());
  return !PyErr_Occurred();
}

// The same without the global interpreter lock, for long computations.
template <class F>
bool without_gil(F f) {
  return catch_exceptions([&] {
    const ReleaseGil released;
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
