// The training functions of the Python module (nmtkit/_native.pyi).
#pragma once

#include "python.h"
#include "training.h"
#include "training_attention.h"

namespace nmtkit::bindings {

constexpr size_t kMinTeamSize = 1 << 15;  // elements of an operator that are worth more than one thread

inline int threads_for(size_t elements, int threads) { return elements < kMinTeamSize ? 1 : threads; }

inline PyObject* cross_entropy(PyObject*, PyObject* args) {
  Address logits, targets, losses;
  int rows, width, learning, threads;
  float smoothing;
  if (!PyArg_ParseTuple(args, "KiiKfpKi", &logits, &rows, &width, &targets, &smoothing, &learning, &losses, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    for (const int id : kNeverOutput)
      if (id >= width) throw std::out_of_range("the vocabulary has no id " + std::to_string(id));
    for (int row = 0; row < rows; ++row)
      if (const int64_t target = pointer<int64_t>(targets)[row]; target < 0 || target >= width)
        throw std::out_of_range("target " + std::to_string(target) + " is not in the vocabulary");
    team_for(rows, threads_for(static_cast<size_t>(rows) * width, threads), [&](int row, int) {
      pointer<RowLoss>(losses)[row] = nmtkit::cross_entropy(pointer<float>(logits) + static_cast<size_t>(row) * width,
                                                            width, pointer<int64_t>(targets)[row], smoothing, learning);
    });
  }));
}

inline PyObject* dropout(PyObject*, PyObject* args) {
  Address x, residual, bits, y;
  float threshold, scale;
  long long count;
  int threads;
  if (!PyArg_ParseTuple(args, "KKKffLKi", &x, &residual, &bits, &threshold, &scale, &count, &y, &threads))
    return nullptr;
  constexpr int kBlock = 1 << 14;  // elements
  return none_if(without_gil([&] {
    const DropoutMask mask{pointer<int16_t>(bits), threshold, scale};
    const int blocks = static_cast<int>((count + kBlock - 1) / kBlock);
    team_for(blocks, threads_for(count, threads), [&](int block, int) {
      const size_t begin = static_cast<size_t>(block) * kBlock;
      nmtkit::dropout(pointer<float>(x), pointer<float>(residual), mask, pointer<float>(y), begin,
                      static_cast<int>(std::min<long long>(kBlock, count - begin)));
    });
  }));
}

inline PyObject* residual_norm(PyObject*, PyObject* args) {
  Address x, y, bits, gain, bias, sum, moments, result;
  float threshold, scale, epsilon;
  int rows, width, threads;
  if (!PyArg_ParseTuple(args, "KKKffKKfiiKKKi", &x, &y, &bits, &threshold, &scale, &gain, &bias, &epsilon, &rows,
                        &width, &sum, &moments, &result, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    const DropoutMask mask{pointer<int16_t>(bits), threshold, scale};
    const ResidualNorm norm{rows, width, mask, pointer<float>(gain)};
    norm.forward(pointer<float>(x), pointer<float>(y), pointer<float>(bias), epsilon, pointer<float>(sum),
                 pointer<Moments>(moments), pointer<float>(result),
                 threads_for(static_cast<size_t>(rows) * width, threads));
  }));
}

inline PyObject* residual_norm_backward(PyObject*, PyObject* args) {
  Address gradient, bits, gain, sum, moments, grad_x, grad_y, grad_gain, grad_bias;
  float threshold, scale;
  int rows, width, threads;
  if (!PyArg_ParseTuple(args, "KKffKKKiiKKKKi", &gradient, &bits, &threshold, &scale, &gain, &sum, &moments, &rows,
                        &width, &grad_x, &grad_y, &grad_gain, &grad_bias, &threads))
    return nullptr;
  return none_if(without_gil([&] {
    const DropoutMask mask{pointer<int16_t>(bits), threshold, scale};
    const ResidualNorm norm{rows, width, mask, pointer<float>(gain)};
    norm.backward(pointer<float>(gradient), pointer<float>(sum), pointer<Moments>(moments), pointer<float>(grad_x),
                  pointer<float>(grad_y), pointer<float>(grad_gain), pointer<float>(grad_bias),
                  threads_for(static_cast<size_t>(rows) * width, threads));
  }));
}

// (address, stride) to Heads.
template <class T>
int read_heads(PyObject* tuple, void* heads) {
  Address address;
  Py_ssize_t stride;
  if (!PyArg_ParseTuple(tuple, "Kn", &address, &stride)) return 0;
  *static_cast<Heads<T>*>(heads) = {pointer<T>(address), stride};
  return 1;
}

// (B, H, T, S, K, V) to AttentionShape.
inline int read_shape(PyObject* tuple, void* result) {
  AttentionShape& shape = *static_cast<AttentionShape*>(result);
  return PyArg_ParseTuple(tuple, "iiiiii", &shape.B, &shape.H, &shape.T, &shape.S, &shape.K, &shape.V);
}

inline PyObject* attention_weights_size(PyObject*, PyObject* args) {
  AttentionShape shape;
  if (!PyArg_ParseTuple(args, "O&", read_shape, &shape)) return nullptr;
  size_t size = 0;
  return catch_exceptions([&] { size = shape.weights_size(); }) ? PyLong_FromSize_t(size) : nullptr;
}

inline PyObject* attention(PyObject*, PyObject* args) {
  ShortAttention self;
  Address mask, weights;
  Heads<float> heads;
  int causal, threads;
  if (!PyArg_ParseTuple(args, "O&pKO&O&O&O&Ki", read_shape, &self.shape, &causal, &mask, read_heads<const float>,
                        &self.queries, read_heads<const float>, &self.keys, read_heads<const float>, &self.values,
                        read_heads<float>, &heads, &weights, &threads))
    return nullptr;
  self.causal = causal != 0;
  self.mask = pointer<bool>(mask);
  return none_if(without_gil([&] { self.forward(heads, pointer<float>(weights), threads); }));
}

inline PyObject* attention_backward(PyObject*, PyObject* args) {
  ShortAttention self;
  Address mask, weights;
  Heads<const float> gradient;
  Heads<float> grad_queries, grad_keys, grad_values;
  int causal, threads;
  if (!PyArg_ParseTuple(args, "O&pKO&O&O&O&KO&O&O&i", read_shape, &self.shape, &causal, &mask, read_heads<const float>,
                        &self.queries, read_heads<const float>, &self.keys, read_heads<const float>, &self.values,
                        read_heads<const float>, &gradient, &weights, read_heads<float>, &grad_queries,
                        read_heads<float>, &grad_keys, read_heads<float>, &grad_values, &threads))
    return nullptr;
  self.causal = causal != 0;
  self.mask = pointer<bool>(mask);
  return none_if(without_gil([&] {
    self.backward(gradient, pointer<float>(weights), grad_queries, grad_keys, grad_values, threads);
  }));
}

}  // namespace nmtkit::bindings
