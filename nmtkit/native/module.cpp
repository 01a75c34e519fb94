// The Python module (nmtkit/_native.pyi). The search has arrays, whose shapes are checked here; training has addresses.
#include "python.h"
#include "log_softmax.h"
#include "parallel.h"
#include "decoder_state.h"
#include "top_k.h"
#include "training_module.h"
#include "weights.h"

namespace {

using namespace nmtkit;

// Throws std::out_of_range for ids outside a vocabulary.
void check_ids(const Array<const int64_t>& ids, int vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids.data()[i] < 0 || ids.data()[i] >= vocabulary)
      throw std::out_of_range("the id " + std::to_string(ids.data()[i]) + " is not in the vocabulary");
}

// Throws std::out_of_range for an unknown name.
NumberFormat number_format_of(const std::string& name) {
  if (name == "fp32") return NumberFormat::kFp32;
  if (name == "int8") return NumberFormat::kInt8;
  throw std::out_of_range("there is no number format " + name);
}

PyObject* make_matrix(PyObject*, PyObject* args) {
  Array<const float> weight, bias;
  const char* format;
  if (!PyArg_ParseTuple(args, "O&O&s", Array<const float>::read, &weight, Array<const float>::read_optional, &bias, &format))
    return nullptr;
  std::unique_ptr<Matrix> made;
  const bool done = without_gil([&] {
    const int rows = weight.length(0), columns = weight.length(1);
    if (bias.data()) bias.expect_size(rows, "biases");
    made = std::make_unique<Matrix>(WeightRows{weight.data(), rows, columns}, bias.data(), number_format_of(format));
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* quantize(PyObject*, PyObject* args) {
  Array<const float> weight;
  Array<int8_t> integers;
  Array<float> scales;
  if (!PyArg_ParseTuple(args, "O&O&O&", Array<const float>::read, &weight, Array<int8_t>::read, &integers,
                        Array<float>::read, &scales))
    return nullptr;
  return none_if(without_gil([&] {
    const WeightRows rows{weight.data(), weight.length(0), weight.length(1)};
    integers.expect_size(weight.size(), "integers");
    scales.expect_size(rows.rows, "scales");
    std::vector<int8_t> row(column_groups(rows.columns) * 4);
    for (int n = 0; n < rows.rows; ++n) {
      scales.data()[n] = rows.quantize(n, row);
      std::copy_n(row.begin(), rows.columns, integers.data() + static_cast<size_t>(n) * rows.columns);
    }
  }));
}

PyObject* multiply(PyObject*, PyObject* args) {
  const Matrix* matrix;
  Array<const float> x;
  Array<float> y;
  int threads;
  if (!PyArg_ParseTuple(args, "O&O&O&i", read_capsule<Matrix>, &matrix, Array<const float>::read, &x, Array<float>::read,
                        &y, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    const int rows = static_cast<int>(x.size() / matrix->columns());
    x.expect_size(static_cast<size_t>(rows) * matrix->columns(), "inputs");
    y.expect_size(static_cast<size_t>(rows) * matrix->rows(), "outputs");
    const RowBlocks blocks(rows, threads);
    std::vector<QuantizedInput> quantized(std::max(1, std::min(threads, blocks.count())));
    if (matrix->is_int8())
      for (auto& input : quantized) input.reserve(blocks.max_size(), matrix->columns());
    parallel_for(blocks.count(), threads, [&](int block, int thread) {
      const int begin = blocks.begin(block);
      matrix->multiply(x.data() + static_cast<size_t>(begin) * matrix->columns(), blocks.end(block) - begin,
                       y.data() + static_cast<size_t>(begin) * matrix->rows(), quantized[thread]);
    });
  }));
}

// Throws std::out_of_range for an unknown name.
Activation activation_of(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "swish") return Activation::kSwish;
  if (name == "swiglu") return Activation::kSwiglu;
  throw std::out_of_range("there is no activation " + name);
}

PyObject* model(PyObject*, PyObject* args) {
  Model sizes;
  int pre_norm, rms_norm, rotary, encoder_layers, decoder_layers, threads;
  const char *activation, *format;
  PyObject* weights;
  if (!PyArg_ParseTuple(args, "iiiipffppsiiO!si", &sizes.d_model, &sizes.heads, &sizes.d_k, &sizes.d_v, &pre_norm,
                        &sizes.embedding_scale, &sizes.norm_epsilon, &rms_norm, &rotary, &activation, &encoder_layers,
                        &decoder_layers, &PyDict_Type, &weights, &format, &threads))
    return nullptr;
  std::vector<Array<const float>> read(PyDict_Size(weights));
  std::vector<Array<const int8_t>> integers(read.size());
  NamedArrays arrays;
  PyObject *name, *value;
  Py_ssize_t at = 0;
  for (size_t i = 0; PyDict_Next(weights, &at, &name, &value); ++i) {
    const char* text = PyUnicode_AsUTF8(name);
    if (!text) return nullptr;
    const bool is_int8 = PyTuple_Check(value);
    if (is_int8 ? !PyArg_ParseTuple(value, "O&O&", Array<const int8_t>::read, &integers[i], Array<const float>::read, &read[i])
                : !Array<const float>::read(value, &read[i]))
      return nullptr;
    if (!catch_exceptions([&] {
          const int columns = read[i].dimensions() > 1 ? read[i].length(1) : 1;
          arrays[text] = {read[i].data(), read[i].length(0), columns};
          if (is_int8) arrays[text] = {nullptr, integers[i].length(0), integers[i].length(1), integers[i].data(), read[i].data()};
          if (is_int8) read[i].expect_size(integers[i].length(0), "scales");
        }))
      return nullptr;
  }
  std::unique_ptr<LoadedModel> made;
  const bool done = without_gil([&] {
    sizes.pre_norm = pre_norm != 0;
    sizes.rms_norm = rms_norm != 0;
    sizes.rotary = rotary != 0;
    sizes.activation = activation_of(activation);
    made = std::make_unique<LoadedModel>(sizes, encoder_layers, decoder_layers, arrays, number_format_of(format), threads);
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* encode(PyObject*, PyObject* args) {
  const LoadedModel* model;
  Array<const int64_t> source, lengths;
  Array<const float> positions;
  int threads;
  if (!PyArg_ParseTuple(args, "O&O&O&O&i", read_capsule<LoadedModel>, &model, Array<const int64_t>::read, &source,
                        Array<const int64_t>::read, &lengths, Array<const float>::read, &positions, &threads))
    return nullptr;
  std::unique_ptr<DecoderState> made;
  const bool done = without_gil([&] {
    const int sentences = source.length(0), width = source.length(1);
    if (lengths.size() != static_cast<size_t>(sentences))
      throw std::out_of_range(std::to_string(lengths.size()) + " lengths do not fit " + std::to_string(sentences) +
                              " sentences");
    positions.expect_size(static_cast<size_t>(width) * model->position_width(), "positions");
    check_ids(source, model->source_size());
    made = std::make_unique<DecoderState>(*model, source.data(), lengths.data(), sentences, width, positions.data(),
                                          threads);
  });
  return done ? to_capsule(std::move(made)) : nullptr;
}

PyObject* restrict_to(PyObject*, PyObject* args) {
  const LoadedModel* model;
  DecoderState* state;
  Array<const int32_t> ids;
  Array<const int64_t> starts;
  if (!PyArg_ParseTuple(args, "O&O&O&O&", read_capsule<LoadedModel>, &model, read_capsule<DecoderState>, &state,
                        Array<const int32_t>::read, &ids, Array<const int64_t>::read, &starts))
    return nullptr;
  return none_if(catch_exceptions([&] {
    const int sentences = starts.length(0) - 1;
    for (int b = 0; b < sentences; ++b)
      if (starts.data()[b] > starts.data()[b + 1]) throw std::out_of_range("shortlists overlap");
    ids.expect_size(starts.data()[sentences], "ids");
    state->restrict_to(Shortlists(model->output_rows(), ids.data(), starts.data(), sentences));
  }));
}

PyObject* reorder(PyObject*, PyObject* args) {
  DecoderState* state;
  Array<const int64_t> origins;
  if (!PyArg_ParseTuple(args, "O&O&", read_capsule<DecoderState>, &state, Array<const int64_t>::read, &origins))
    return nullptr;
  return none_if(without_gil([&] { state->reorder(origins.data(), origins.length(0)); }));
}

PyObject* step(PyObject*, PyObject* args) {
  DecoderState* state;
  Array<const int64_t> tokens;
  Array<const float> position;
  Array<float> log_probs;
  int threads;
  if (!PyArg_ParseTuple(args, "O&O&O&O&i", read_capsule<DecoderState>, &state, Array<const int64_t>::read, &tokens,
                        Array<const float>::read, &position, Array<float>::read, &log_probs, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    log_probs.expect_size(tokens.size() * state->model().output->rows(), "log-probabilities");
    position.expect_size(state->model().position_width(), "positions");
    state->step(tokens.data(), tokens.length(0), position.data(), log_probs.data(), threads);
  }));
}

PyObject* best_step(PyObject*, PyObject* args) {
  DecoderState* state;
  PyObject* excluded;
  Array<const int64_t> tokens;
  Array<const float> position;
  Array<float> log_probs;
  Array<int64_t> best_tokens;
  int threads;
  if (!PyArg_ParseTuple(args, "O&O&O&O!O&O&i", read_capsule<DecoderState>, &state, Array<const int64_t>::read, &tokens,
                        Array<const float>::read, &position, &PyTuple_Type, &excluded, Array<float>::read, &log_probs,
                        Array<int64_t>::read, &best_tokens, &threads))
    return nullptr;
  std::vector<int64_t> ids;
  for (Py_ssize_t i = 0; i < PyTuple_Size(excluded); ++i)
    ids.push_back(PyLong_AsLongLong(PyTuple_GetItem(excluded, i)));
  if (PyErr_Occurred()) return nullptr;
  return none_if(without_gil([&] {
    const int k = log_probs.length(1);
    log_probs.expect_size(tokens.size() * k, "log-probabilities");
    best_tokens.expect_size(tokens.size() * k, "tokens");
    position.expect_size(state->model().position_width(), "positions");
    state->best_step(tokens.data(), tokens.length(0), position.data(), ids, k, log_probs.data(), best_tokens.data(),
                     threads);
  }));
}

PyObject* record_attention(PyObject*, PyObject* args) {
  DecoderState* state;
  Array<float> weights;
  int layer;
  if (!PyArg_ParseTuple(args, "O&iO&", read_capsule<DecoderState>, &state, &layer, Array<float>::read, &weights))
    return nullptr;
  return none_if(without_gil([&] {
    weights.expect_size(static_cast<size_t>(state->rows()) * state->longest_source(), "weights");
    state->record_attention(layer, weights.data());
  }));
}

PyObject* attend(PyObject*, PyObject* args) {
  DecoderState* state;
  Array<const int64_t> tokens;
  Array<const float> position;
  int threads;
  if (!PyArg_ParseTuple(args, "O&O&O&i", read_capsule<DecoderState>, &state, Array<const int64_t>::read, &tokens,
                        Array<const float>::read, &position, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    position.expect_size(state->model().position_width(), "positions");
    state->attend(tokens.data(), tokens.length(0), position.data(), threads);
  }));
}

PyObject* top_k(PyObject*, PyObject* args) {
  constexpr size_t kMinParallelSize = 1 << 16;  // scores: below, a thread takes longer to start than to compute
  Array<const float> scores;
  Array<float> values;
  Array<int64_t> indices;
  int threads;
  if (!PyArg_ParseTuple(args, "O&O&O&i", Array<const float>::read, &scores, Array<float>::read, &values,
                        Array<int64_t>::read, &indices, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    const int rows = scores.length(0), width = scores.length(1), k = values.length(1);
    if (k > width) throw std::out_of_range("there are no " + std::to_string(k) + " scores in a row");
    values.expect_size(static_cast<size_t>(rows) * k, "values");
    indices.expect_size(static_cast<size_t>(rows) * k, "indices");
    if (scores.size() < kMinParallelSize) threads = 1;
    const RowBlocks blocks(rows, threads);
    parallel_for(blocks.count(), threads, [&](int block, int) {
      for (size_t row = blocks.begin(block); row < static_cast<size_t>(blocks.end(block)); ++row)
        nmtkit::top_k(
            scores.data() + row * width, width, k, [](auto score) { return score; }, values.data() + row * k,
            indices.data() + row * k);
    });
  }));
}

PyMethodDef kMethods[] = {
    {"matrix", make_matrix, METH_VARARGS, nullptr},
    {"quantize", quantize, METH_VARARGS, nullptr},
    {"multiply", multiply, METH_VARARGS, nullptr},
    {"model", model, METH_VARARGS, nullptr},
    {"encode", encode, METH_VARARGS, nullptr},
    {"restrict_to", restrict_to, METH_VARARGS, nullptr},
    {"reorder", reorder, METH_VARARGS, nullptr},
    {"step", step, METH_VARARGS, nullptr},
    {"best_step", best_step, METH_VARARGS, nullptr},
    {"record_attention", record_attention, METH_VARARGS, nullptr},
    {"attend", attend, METH_VARARGS, nullptr},
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
