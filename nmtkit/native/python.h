// What functions of the Python modules share: arrays, addresses, capsules, the interpreter lock, exceptions.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "memory.h"

namespace nmtkit {

using Address = unsigned long long;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// A contiguous array that Python passes; T is const if it is only read. Release it with the interpreter lock held.
template <class T>
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array(Array&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  ~Array() { PyBuffer_Release(&view_); }

  // For "O&" of PyArg_ParseTuple. Raises TypeError for another type of element, ValueError if it is not contiguous.
  static int read(PyObject* object, void* result) {
    Py_buffer& view = static_cast<Array*>(result)->view_;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (std::is_const<T>::value ? 0 : PyBUF_WRITABLE);
    if (PyObject_GetBuffer(object, &view, flags) != 0) return 0;
    const bool is_float = view.format[0] == 'f', is_int = std::strchr("lqib", view.format[0]);
    if ((std::is_floating_point<T>::value ? is_float : is_int) && view.itemsize == sizeof(T)) return 1;
    PyErr_Format(PyExc_TypeError, "an array of %s%d is expected", std::is_floating_point<T>::value ? "float" : "int",
                 static_cast<int>(8 * sizeof(T)));
    return 0;
  }

  // The same, or None: an array without data.
  static int read_optional(PyObject* object, void* result) { return object == Py_None || read(object, result); }

  T* data() const { return static_cast<T*>(view_.buf); }
  size_t size() const { return view_.obj ? static_cast<size_t>(view_.len) / sizeof(T) : 0; }
  int dimensions() const { return view_.ndim; }
  // Throws std::out_of_range for lengths that are no int.
  int length(int dimension) const {
    if (dimension >= view_.ndim || view_.shape[dimension] > INT_MAX) throw std::out_of_range("the array has a wrong shape");
    return static_cast<int>(view_.shape[dimension]);
  }

  // Throws std::out_of_range for an array of another size.
  void expect_size(size_t expected, const char* name) const {
    if (size() != expected)
      throw std::out_of_range(std::string(name) + " have " + std::to_string(size()) + " elements, not " + std::to_string(expected));
  }

 private:
  Py_buffer view_{};
};

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
