// The Python module (nmtkit/_native.pyi). Tensors come as addresses; nmtkit/inference/native_transformer.py has checked their shapes.
#include "python.h"
#include "log_softmax.h"
#include "parallel.h"
#include "decoder_state.h"
#include "top_k.h"
#include "training_module.h"

namespace {

using namespace nmtkit;

// A Matrix or RowMatrix.
template <class M>
PyObject* make_matrix(PyObject*, PyObject* args) {
  Address weight, bias;
  int rows, columns, int8;
  if (!PyArg_ParseTuple(args, "KKiip", &weight, &bias, &rows, &columns, &int8)) return nullptr;
  std::unique_ptr<M> made;
  const bool done = without_gil([&] {
    made = std::make_unique<M>(pointer<float>(weight), pointer<float>(bias), rows, columns, int8 != 0);
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* multiply(PyObject*, PyObject* args) {
  const Matrix* matrix;
  Address x, y;
  int rows, threads;
  if (!PyArg_ParseTuple(args, "O&KiKi", read_capsule<Matrix>, &matrix, &x, &rows, &y, &threads)) return nullptr;
  return none_if(without_gil([&] {
    const RowBlocks blocks(rows, threads);
    std::vector<QuantizedInput> quantized(std::max(1, std::min(threads, blocks.count())));
    if (matrix->is_int8())
      for (auto& input : quantized) input.reserve(blocks.max_size(), matrix->columns());
    parallel_for(blocks.count(), threads, [&](int block, int thread) {
      const int begin = blocks.begin(block);
      matrix->multiply(pointer<float>(x) + static_cast<size_t>(begin) * matrix->columns(), blocks.end(block) - begin,
                       pointer<float>(y) + static_cast<size_t>(begin) * matrix->rows(), quantized[thread]);
    });
  }));
}

// Reads matrices and norms in the order in which a batch meets them. Sets a Python exception where one is missing.
class ParameterReader {
 public:
  ParameterReader(PyObject* matrices, PyObject* norms, double epsilon)
      : matrices_(matrices), norms_(norms), epsilon_(static_cast<float>(epsilon)) {}

  const Matrix* matrix() {
    const Matrix* found = nullptr;
    PyObject* capsule = PyList_GetItem(matrices_, matrix_++);
    if (capsule) read_capsule<Matrix>(capsule, &found);
    return found;
  }

  LayerNorm norm() {
    Address gain = 0, bias = 0;
    PyObject* pair = PyList_GetItem(norms_, norm_++);
    if (pair) PyArg_ParseTuple(pair, "KK", &gain, &bias);
    return {pointer<float>(gain), pointer<float>(bias), epsilon_};
  }

 private:
  PyObject *matrices_, *norms_;
  float epsilon_;
  Py_ssize_t matrix_ = 0, norm_ = 0;
};

// Throws std::out_of_range for an unknown name.
Activation activation_of(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "swish") return Activation::kSwish;
  throw std::out_of_range("there is no activation " + name);
}

PyObject* model(PyObject*, PyObject* args) {
  std::unique_ptr<Model> made;
  if (!catch_exceptions([&] { made = std::make_unique<Model>(); })) return nullptr;
  Address source, target;
  int pre_norm, encoder_layers, decoder_layers;
  const char* activation;
  double epsilon;
  PyObject *matrices, *norms;
  if (!PyArg_ParseTuple(args, "iiiipsKKiiO!O!d", &made->d_model, &made->heads, &made->d_k, &made->d_v, &pre_norm,
                        &activation, &source, &target, &encoder_layers, &decoder_layers, &PyList_Type, &matrices,
                        &PyList_Type, &norms, &epsilon))
    return nullptr;
  const bool done = catch_exceptions([&] {
    made->pre_norm = pre_norm != 0;
    made->activation = activation_of(activation);
    made->source_embedding = pointer<float>(source);
    made->target_embedding = pointer<float>(target);
    ParameterReader next(matrices, norms, epsilon);
    for (int l = 0; l < encoder_layers && !PyErr_Occurred(); ++l) {
      const SelfAttention self_attention{next.matrix(), next.matrix()};
      const FeedForward feed_forward{next.matrix(), next.matrix()};
      made->encoder.push_back({self_attention, feed_forward, {next.norm(), next.norm()}});
    }
    for (int l = 0; l < decoder_layers && !PyErr_Occurred(); ++l) {
      const SelfAttention self_attention{next.matrix(), next.matrix()};
      const CrossAttention cross_attention{next.matrix(), next.matrix(), next.matrix()};
      const FeedForward feed_forward{next.matrix(), next.matrix()};
      made->decoder.push_back(
          {self_attention, cross_attention, feed_forward, {next.norm(), next.norm(), next.norm()}});
    }
    made->output = next.matrix();
    if (made->pre_norm) {
      made->encoder_norm = next.norm();
      made->decoder_norm = next.norm();
    }
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* encode(PyObject*, PyObject* args) {
  const Model* model;
  Address source, lengths, positions;
  int sentences, width, threads;
  if (!PyArg_ParseTuple(args, "O&KKiiKi", read_capsule<Model>, &model, &source, &lengths, &sentences, &width,
                        &positions, &threads))
    return nullptr;
  std::unique_ptr<DecoderState> made;
  const bool done = without_gil([&] {
    made = std::make_unique<DecoderState>(*model, pointer<int64_t>(source), pointer<int64_t>(lengths), sentences, width,
                                          pointer<float>(positions), threads);
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* restrict_to(PyObject*, PyObject* args) {
  DecoderState* state;
  const RowMatrix* matrix;
  Address ids, starts;
  int sentences;
  if (!PyArg_ParseTuple(args, "O&O&KKi", read_capsule<DecoderState>, &state, read_capsule<RowMatrix>, &matrix, &ids,
                        &starts, &sentences))
    return nullptr;
  return none_if(catch_exceptions([&] {
    state->restrict_to(Shortlists(*matrix, pointer<int32_t>(ids), pointer<int64_t>(starts), sentences));
  }));
}

PyObject* reorder(PyObject*, PyObject* args) {
  DecoderState* state;
  Address origins;
  int rows;
  if (!PyArg_ParseTuple(args, "O&Ki", read_capsule<DecoderState>, &state, &origins, &rows)) return nullptr;
  return none_if(without_gil([&] { state->reorder(pointer<int64_t>(origins), rows); }));
}

PyObject* step(PyObject*, PyObject* args) {
  DecoderState* state;
  Address tokens, position, log_probs;
  int rows, threads;
  if (!PyArg_ParseTuple(args, "O&KiKKi", read_capsule<DecoderState>, &state, &tokens, &rows, &position, &log_probs,
                        &threads))
    return nullptr;
  return none_if(without_gil([&] {
    state->step(pointer<int64_t>(tokens), rows, pointer<float>(position), pointer<float>(log_probs), threads);
  }));
}

PyObject* best_step(PyObject*, PyObject* args) {
  DecoderState* state;
  PyObject* excluded;
  Address tokens, position, log_probs, best_tokens;
  int rows, k, threads;
  if (!PyArg_ParseTuple(args, "O&KiKO!iKKi", read_capsule<DecoderState>, &state, &tokens, &rows, &position,
                        &PyTuple_Type, &excluded, &k, &log_probs, &best_tokens, &threads))
    return nullptr;
  std::vector<int64_t> ids;
  for (Py_ssize_t i = 0; i < PyTuple_Size(excluded); ++i)
    ids.push_back(PyLong_AsLongLong(PyTuple_GetItem(excluded, i)));
  if (PyErr_Occurred()) return nullptr;
  return none_if(without_gil([&] {
    state->best_step(pointer<int64_t>(tokens), rows, pointer<float>(position), ids, k, pointer<float>(log_probs),
                      pointer<int64_t>(best_tokens), threads);
  }));
}

PyObject* top_k(PyObject*, PyObject* args) {
  constexpr size_t kMinParallelSize = 1 << 16;  // scores: below, a thread takes longer to start than to compute
  Address scores, values, indices;
  int rows, width, k, threads;
  if (!PyArg_ParseTuple(args, "KiiiKKi", &scores, &rows, &width, &k, &values, &indices, &threads)) return nullptr;
  return none_if(without_gil([&] {
    if (static_cast<size_t>(rows) * width < kMinParallelSize) threads = 1;
    const RowBlocks blocks(rows, threads);
    parallel_for(blocks.count(), threads, [&](int block, int) {
      for (size_t row = blocks.begin(block); row < static_cast<size_t>(blocks.end(block)); ++row)
        nmtkit::top_k(
            pointer<float>(scores) + row * width, width, k, [](auto score) { return score; },
            pointer<float>(values) + row * k, pointer<int64_t>(indices) + row * k);
    });
  }));
}

PyMethodDef kMethods[] = {
    {"matrix", make_matrix<Matrix>, METH_VARARGS, nullptr},
    {"row_matrix", make_matrix<RowMatrix>, METH_VARARGS, nullptr},
    {"multiply", multiply, METH_VARARGS, nullptr},
    {"model", model, METH_VARARGS, nullptr},
    {"encode", encode, METH_VARARGS, nullptr},
    {"restrict_to", restrict_to, METH_VARARGS, nullptr},
    {"reorder", reorder, METH_VARARGS, nullptr},
    {"step", step, METH_VARARGS, nullptr},
    {"best_step", best_step, METH_VARARGS, nullptr},
    {"top_k", top_k, METH_VARARGS, nullptr},
    {"cross_entropy", bindings::cross_entropy, METH_VARARGS, nullptr},
    {"add", bindings::add, METH_VARARGS, nullptr},
    {"dropout", bindings::dropout, METH_VARARGS, nullptr},
    {"residual_norm", bindings::residual_norm, METH_VARARGS, nullptr},
    {"residual_norm_backward", bindings::residual_norm_backward, METH_VARARGS, nullptr},
    {"attention_weights_size", bindings::attention_weights_size, METH_VARARGS, nullptr},
    {"attention", bindings::attention, METH_VARARGS, nullptr},
    {"attention_backward", bindings::attention_backward, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

#define NMTKIT_JOIN_OF(a, b) a##b
#define NMTKIT_JOIN(a, b) NMTKIT_JOIN_OF(a, b)

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, NMTKIT_TEXT(NMTKIT_MODULE), nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// setup.py defines NMTKIT_MODULE, the name of the module: one for each set of instructions.
PyMODINIT_FUNC NMTKIT_JOIN(PyInit_, NMTKIT_MODULE)() {
  if (!cpu_supported()) {
    PyErr_Format(PyExc_ImportError, "this CPU has no %s", kIsaName);
    return nullptr;
  }
  return nmtkit::make_module(&kModule);
}
