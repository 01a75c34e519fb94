// What Python sees (nmtkit/_native.pyi): tensors come as addresses, and nmtkit/model/native.py answers for their shapes.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

#include "choice.h"
#include "transformer.h"

namespace {

using namespace nmtkit;
using Address = unsigned long long;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// Python's lock, given up for a while.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

template <class T>
constexpr const char* kName = nullptr;
template <>
constexpr const char* kName<Matrix> = "nmtkit.Matrix";
template <>
constexpr const char* kName<Model> = "nmtkit.Model";
template <>
constexpr const char* kName<Search> = "nmtkit.Search";

template <class T>
T* held(PyObject* capsule) {
  return static_cast<T*>(PyCapsule_GetPointer(capsule, kName<T>));
}

template <class T>
PyObject* hold(T* object) {
  if (!object) return PyErr_NoMemory();
  PyObject* capsule =
      PyCapsule_New(object, kName<T>, [](PyObject* self) { delete held<T>(self); });
  if (!capsule) delete object;
  return capsule;
}

// Do some work; false, with an exception set, where it cannot be done.
template <class Work>
bool guarded(Work work) {
  bool out_of_memory = false;
  std::string wrong, too_large;
  try {
    work();
  } catch (const std::out_of_range& error) {
    wrong = error.what();
  } catch (const TooLarge& error) {
    too_large = error.what();
  } catch (const std::exception&) {  // std::bad_alloc, or std::length_error: more than any memory has
    out_of_memory = true;
  }
  if (out_of_memory) PyErr_NoMemory();
  if (!wrong.empty()) PyErr_SetString(PyExc_IndexError, wrong.c_str());
  if (!too_large.empty()) PyErr_SetString(PyExc_MemoryError, too_large.c_str());
  return !PyErr_Occurred();
}

// The same for what takes long, without Python's lock.
template <class Work>
bool unlocked(Work work) {
  return guarded([&] {
    const Unlocked here;
    work();
  });
}

PyObject* none_if(bool done) {
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

PyObject* matrix(PyObject*, PyObject* args) {
  Address weight, bias;
  int rows, columns, eight_bits;
  if (!PyArg_ParseTuple(args, "KKiip", &weight, &bias, &rows, &columns, &eight_bits)) return nullptr;
  Matrix* made = nullptr;
  if (!unlocked([&] { made = new Matrix(at<float>(weight), at<float>(bias), rows, columns, eight_bits != 0); }))
    return nullptr;
  return hold(made);
}

PyObject* multiply(PyObject*, PyObject* args) {
  PyObject* capsule;
  Address x, y;
  int rows, threads;
  if (!PyArg_ParseTuple(args, "OKiKi", &capsule, &x, &rows, &y, &threads)) return nullptr;
  const Matrix* matrix = held<Matrix>(capsule);
  if (!matrix) return nullptr;
  return none_if(unlocked([&] {
    const Blocks blocks(rows, threads);
    std::vector<Rounded> rounded(std::max(1, std::min(threads, blocks.count())));
    if (matrix->eight_bits())
      for (auto& each : rounded) each.reserve(blocks.largest(), matrix->columns());
    share_out(blocks.count(), threads, [&](int block, int thread) {
      const int from = blocks.begin(block);
      matrix->multiply(at<float>(x) + static_cast<size_t>(from) * matrix->columns(), blocks.end(block) - from,
                       at<float>(y) + static_cast<size_t>(from) * matrix->rows(), rounded[thread]);
    });
  }));
}

// Takes matrices and norms in the order in which a batch meets them.
class Parts {
 public:
  Parts(PyObject* matrices, PyObject* norms, double epsilon)
      : matrices_(matrices), norms_(norms), epsilon_(static_cast<float>(epsilon)) {}

  const Matrix* matrix() {
    PyObject* capsule = PyList_GetItem(matrices_, matrix_++);
    return capsule ? held<Matrix>(capsule) : nullptr;
  }

  Norm norm() {
    Address gain = 0, bias = 0;
    PyObject* pair = PyList_GetItem(norms_, norm_++);
    if (pair) PyArg_ParseTuple(pair, "KK", &gain, &bias);
    return {at<float>(gain), at<float>(bias), epsilon_};
  }

 private:
  PyObject *matrices_, *norms_;
  float epsilon_;
  Py_ssize_t matrix_ = 0, norm_ = 0;
};

// Throws TooLarge where the widths of a token's queries, keys and values do not fit into an int.
void check_widths(const Model& model) {
  for (const int size : {model.d_model, model.heads, model.d_k, model.d_v})
    if (size < 1 || size > kMostColumns) throw TooLarge("there is no room for a model of such widths");
  if (int64_t{model.heads} * (2 * model.d_k + model.d_v) > INT_MAX) throw TooLarge("there is no room for so many heads");
}

PyObject* model(PyObject*, PyObject* args) {
  std::unique_ptr<Model> made;
  if (!guarded([&] { made = std::make_unique<Model>(); })) return nullptr;
  Address source, target;
  int pre_norm, encoder_layers, decoder_layers;
  double epsilon;
  PyObject *matrices, *norms;
  if (!PyArg_ParseTuple(args, "iiiipKKiiO!O!d", &made->d_model, &made->heads, &made->d_k, &made->d_v, &pre_norm, &source,
                        &target, &encoder_layers, &decoder_layers, &PyList_Type, &matrices, &PyList_Type, &norms,
                        &epsilon))
    return nullptr;
  const bool done = guarded([&] {
    check_widths(*made);
    made->pre_norm = pre_norm != 0;
    made->source_embedding = at<float>(source);
    made->target_embedding = at<float>(target);
    Parts parts(matrices, norms, epsilon);
    for (int l = 0; l < encoder_layers && !PyErr_Occurred(); ++l) {
      const SelfAttention self{parts.matrix(), parts.matrix()};
      const FeedForward feed_forward{parts.matrix(), parts.matrix()};
      made->encoder.push_back({self, feed_forward, {parts.norm(), parts.norm()}});
    }
    for (int l = 0; l < decoder_layers && !PyErr_Occurred(); ++l) {
      const SelfAttention self{parts.matrix(), parts.matrix()};
      const CrossAttention cross{parts.matrix(), parts.matrix(), parts.matrix()};
      const FeedForward feed_forward{parts.matrix(), parts.matrix()};
      made->decoder.push_back({self, cross, feed_forward, {parts.norm(), parts.norm(), parts.norm()}});
    }
    made->output = parts.matrix();
    if (made->pre_norm) {
      made->encoder_norm = parts.norm();
      made->decoder_norm = parts.norm();
    }
  });
  return done ? hold(made.release()) : nullptr;
}

PyObject* encode(PyObject*, PyObject* args) {
  PyObject* capsule;
  Address source, lengths, positions;
  int sentences, width, threads;
  if (!PyArg_ParseTuple(args, "OKKiiKi", &capsule, &source, &lengths, &sentences, &width, &positions, &threads))
    return nullptr;
  const Model* model = held<Model>(capsule);
  if (!model) return nullptr;
  Search* made = nullptr;
  if (!unlocked([&] {
        made = new Search(*model, at<int64_t>(source), at<int64_t>(lengths), sentences, width, at<float>(positions),
                          threads);
      }))
    return nullptr;
  return hold(made);
}

PyObject* reorder(PyObject*, PyObject* args) {
  PyObject* capsule;
  Address origins;
  int rows;
  if (!PyArg_ParseTuple(args, "OKi", &capsule, &origins, &rows)) return nullptr;
  Search* search = held<Search>(capsule);
  if (!search) return nullptr;
  return none_if(unlocked([&] { search->reorder(at<int64_t>(origins), rows); }));
}

PyObject* step(PyObject*, PyObject* args) {
  PyObject* capsule;
  Address tokens, position, log_probs;
  int rows, threads;
  if (!PyArg_ParseTuple(args, "OKiKKi", &capsule, &tokens, &rows, &position, &log_probs, &threads)) return nullptr;
  Search* search = held<Search>(capsule);
  if (!search) return nullptr;
  return none_if(
      unlocked([&] { search->step(at<int64_t>(tokens), rows, at<float>(position), at<float>(log_probs), threads); }));
}

PyObject* best_step(PyObject*, PyObject* args) {
  PyObject *capsule, *never;
  Address tokens, position, log_probs, best_tokens;
  int rows, count, threads;
  if (!PyArg_ParseTuple(args, "OKiKO!iKKi", &capsule, &tokens, &rows, &position, &PyTuple_Type, &never, &count,
                        &log_probs, &best_tokens, &threads))
    return nullptr;
  Search* search = held<Search>(capsule);
  if (!search) return nullptr;
  std::vector<int64_t> ids;
  const bool read = guarded([&] {
    for (Py_ssize_t i = 0; i < PyTuple_Size(never); ++i) ids.push_back(PyLong_AsLongLong(PyTuple_GetItem(never, i)));
  });
  if (!read) return nullptr;
  return none_if(unlocked([&] {
    search->best_step(at<int64_t>(tokens), rows, at<float>(position), ids, count, at<float>(log_probs),
                      at<int64_t>(best_tokens), threads);
  }));
}

// Call work(row) for n rows of a width.
template <class Work>
PyObject* for_rows(int n, int width, int threads, Work work) {
  constexpr size_t kWorth = 1 << 16;  // numbers that a thread takes less time for than to start
  return none_if(unlocked([&] {
    if (static_cast<size_t>(n) * width < kWorth) threads = 1;
    const Blocks blocks(n, threads);
    share_out(blocks.count(), threads, [&](int block, int) {
      for (int row = blocks.begin(block); row < blocks.end(block); ++row) work(static_cast<size_t>(row));
    });
  }));
}

PyObject* log_softmax(PyObject*, PyObject* args) {
  Address x;
  int rows, width, threads;
  if (!PyArg_ParseTuple(args, "Kiii", &x, &rows, &width, &threads)) return nullptr;
  return for_rows(rows, width, threads, [&](size_t row) { nmtkit::log_softmax(at<float>(x) + row * width, width); });
}

PyObject* best(PyObject*, PyObject* args) {
  Address scores, values, columns;
  int rows, width, count, threads;
  if (!PyArg_ParseTuple(args, "KiiiKKi", &scores, &rows, &width, &count, &values, &columns, &threads)) return nullptr;
  if (count > width) return PyErr_Format(PyExc_IndexError, "there are no %d of %d numbers", count, width);
  return for_rows(rows, width, threads, [&](size_t row) {
    nmtkit::best(
        at<float>(scores) + row * width, width, count, [](auto score) { return score; },
        at<float>(values) + row * count, at<int64_t>(columns) + row * count);
  });
}

PyMethodDef kMethods[] = {
    {"matrix", matrix, METH_VARARGS, nullptr},
    {"multiply", multiply, METH_VARARGS, nullptr},
    {"model", model, METH_VARARGS, nullptr},
    {"encode", encode, METH_VARARGS, nullptr},
    {"reorder", reorder, METH_VARARGS, nullptr},
    {"step", step, METH_VARARGS, nullptr},
    {"best_step", best_step, METH_VARARGS, nullptr},
    {"log_softmax", log_softmax, METH_VARARGS, nullptr},
    {"best", best, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

#define NMTKIT_TEXT_OF(name) #name
#define NMTKIT_TEXT(name) NMTKIT_TEXT_OF(name)
#define NMTKIT_JOIN_OF(a, b) a##b
#define NMTKIT_JOIN(a, b) NMTKIT_JOIN_OF(a, b)

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, NMTKIT_TEXT(NMTKIT_MODULE), nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// NMTKIT_MODULE is the module's name, which setup.py gives, one for each set of instructions.
PyMODINIT_FUNC NMTKIT_JOIN(PyInit_, NMTKIT_MODULE)() {
  if (!has_instructions()) {
    PyErr_Format(PyExc_ImportError, "this CPU has no %s", kNeeded);
    return nullptr;
  }
  return PyModule_Create(&kModule);
}
