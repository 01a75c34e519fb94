// The training functions of the Python module (nmtkit/_native.pyi).
#pragma once

#include "python.h"
#include "training.h"
#include "training_attention.h"

namespace nmtkit::bindings {

constexpr size_t kMinTeamSize = 1 << 15;  // elements of an operator that are worth more than one thread

inline int threads_for(size_t elements, int threads) { return elements < kMinTeamSize ? 1 : threads; }

// Call body(begin, size) for blocks of `count` elements.
template <class Body>
void for_blocks(long long count, int threads, Body body) {
  constexpr int kBlock = 1 << 14;  // elements
  team_for(static_cast<int>((count + kBlock - 1) / kBlock), threads_for(count, threads), [&](int block, int) {
    const size_t begin = static_cast<size_t>(block) * kBlock;
    body(begin, static_cast<int>(std::min<long long>(kBlock, count - begin)));
  });
}

// Call body(T()) for the type T of elements, without the interpreter lock. Returns None.
template <class Body>
PyObject* compute(int bf16, Body body) {
  return none_if(without_gil([&] { bf16 ? body(Bf16()) : body(float()); }));
}

inline PyObject* cross_entropy(PyObject*, PyObject* args) {
  Address logits, targets, losses;
  int bf16, rows, width, learning, threads;
  float smoothing;
  if (!PyArg_ParseTuple(args, "pKiiKfpKi", &bf16, &logits, &rows, &width, &targets, &smoothing, &learning, &losses,
                        &threads))
    return nullptr;
  return none_if(without_gil([&] {
    for (const int id : kNeverOutput)
      if (id >= width) throw std::out_of_range("the vocabulary has no id " + std::to_string(id));
    for (int row = 0; row < rows; ++row)
      if (const int64_t target = pointer<int64_t>(targets)[row]; target < 0 || target >= width)
        throw std::out_of_range("target " + std::to_string(target) + " is not in the vocabulary");
    threads = threads_for(static_cast<size_t>(rows) * width, threads);
    std::vector<std::vector<float>> memory(bf16 ? std::max(threads, 1) : 0, std::vector<float>(width));
    team_for(rows, threads, [&](int row, int thread) {
      const size_t at = static_cast<size_t>(row) * width;
      const int64_t target = pointer<int64_t>(targets)[row];
      pointer<RowLoss>(losses)[row] =
          bf16 ? nmtkit::cross_entropy(pointer<Bf16>(logits) + at, memory[thread].data(), width, target, smoothing,
                                       learning)
               : nmtkit::cross_entropy(pointer<float>(logits) + at, width, target, smoothing, learning);
    });
  }));
}

inline PyObject* add(PyObject*, PyObject* args) {
  Address x, y;
  int bf16, threads;
  long long count;
  if (!PyArg_ParseTuple(args, "pKKLi", &bf16, &x, &y, &count, &threads)) return nullptr;
  return compute(bf16, [&](auto element) {
    using T = decltype(element);
    for_blocks(count, threads, [&](size_t begin, int size) {
      add_in_place(pointer<T>(x) + begin, pointer<float>(y) + begin, size);
    });
  });
}

inline PyObject* dropout(PyObject*, PyObject* args) {
  Address x, residual, bits, y;
  float threshold, scale;
  long long count;
  int bf16, threads;
  if (!PyArg_ParseTuple(args, "pKKKffLKi", &bf16, &x, &residual, &bits, &threshold, &scale, &count, &y, &threads))
    return nullptr;
  const DropoutMask mask{pointer<int16_t>(bits), threshold, scale};
  return compute(bf16, [&](auto element) {
    using T = decltype(element);
    for_blocks(count, threads, [&](size_t begin, int size) {
      nmtkit::dropout<T>(pointer<T>(x), pointer<T>(residual), mask, pointer<T>(y), begin, size);
    });
  });
}

inline PyObject* residual_norm(PyObject*, PyObject* args) {
  Address x, y, bits, gain, bias, sum, moments, result;
  float threshold, scale, epsilon;
  int bf16, rows, width, threads;
  if (!PyArg_ParseTuple(args, "pKKKffKKfiiKKKi", &bf16, &x, &y, &bits, &threshold, &scale, &gain, &bias, &epsilon, &rows,
                        &width, &sum, &moments, &result, &threads))
    return nullptr;
  const DropoutMask mask{pointer<int16_t>(bits), threshold, scale};
  return compute(bf16, [&](auto element) {
    using T = decltype(element);
    const ResidualNorm<T> norm{rows, width, mask, pointer<float>(gain)};
    norm.forward(pointer<T>(x), pointer<T>(y), pointer<float>(bias), epsilon, pointer<T>(sum),
                 pointer<Moments>(moments), pointer<T>(result),
                 threads_for(static_cast<size_t>(rows) * width, threads));
  });
}

inline PyObject* residual_norm_backward(PyObject*, PyObject* args) {
  Address gradient, bits, gain, sum, moments, grad_x, grad_y, grad_gain, grad_bias;
  float threshold, scale;
  int bf16, rows, width, threads;
  if (!PyArg_ParseTuple(args, "pKKffKKKiiKKKKi", &bf16, &gradient, &bits, &threshold, &scale, &gain, &sum, &moments, &rows,
                        &width, &grad_x, &grad_y, &grad_gain, &grad_bias, &threads))
    return nullptr;
  const DropoutMask mask{pointer<int16_t>(bits), threshold, scale};
  return compute(bf16, [&](auto element) {
    using T = decltype(element);
    const ResidualNorm<T> norm{rows, width, mask, pointer<float>(gain)};
    norm.backward(pointer<T>(gradient), pointer<T>(sum), pointer<Moments>(moments), pointer<T>(grad_x),
                  pointer<T>(grad_y), pointer<float>(grad_gain), pointer<float>(grad_bias),
                  threads_for(static_cast<size_t>(rows) * width, threads));
  });
}

// Heads of elements whose type is not known yet.
struct HeadsAddress {
  Address address;
  Py_ssize_t stride;

  template <class T>
  operator Heads<T>() const { return {pointer<T>(address), stride}; }
};

// (address, stride) to HeadsAddress.
inline int read_heads(PyObject* tuple, void* result) {
  HeadsAddress& heads = *static_cast<HeadsAddress*>(result);
  return PyArg_ParseTuple(tuple, "Kn", &heads.address, &heads.stride);
}

// (B, H, K, V, query_starts, key_starts) to AttentionShape.
inline int read_shape(PyObject* tuple, void* result) {
  AttentionShape& shape = *static_cast<AttentionShape*>(result);
  Address query_starts, key_starts;
  if (!PyArg_ParseTuple(tuple, "iiiiKK", &shape.B, &shape.H, &shape.K, &shape.V, &query_starts, &key_starts)) return 0;
  shape.query_starts = pointer<int32_t>(query_starts);
  shape.key_starts = pointer<int32_t>(key_starts);
  return 1;
}

inline PyObject* attention_weights_size(PyObject*, PyObject* args) {
  AttentionShape shape;
  if (!PyArg_ParseTuple(args, "O&", read_shape, &shape)) return nullptr;
  size_t size = 0;
  return catch_exceptions([&] { size = shape.weight_begins().back(); }) ? PyLong_FromSize_t(size) : nullptr;
}

inline PyObject* attention(PyObject*, PyObject* args) {
  AttentionShape shape;
  Address mask, weights;
  HeadsAddress queries, keys, values, heads;
  int bf16, causal, threads;
  if (!PyArg_ParseTuple(args, "pO&pKO&O&O&O&Ki", &bf16, read_shape, &shape, &causal, &mask, read_heads, &queries,
                        read_heads, &keys, read_heads, &values, read_heads, &heads, &weights, &threads))
    return nullptr;
  return compute(bf16, [&](auto element) {
    using T = decltype(element);
    const ShortAttention<T> self{shape, causal != 0, pointer<bool>(mask), queries, keys, values};
    self.forward(heads, pointer<float>(weights), threads);
  });
}

inline PyObject* attention_backward(PyObject*, PyObject* args) {
  AttentionShape shape;
  Address mask, weights;
  HeadsAddress queries, keys, values, gradient, grad_queries, grad_keys, grad_values;
  int bf16, causal, threads;
  if (!PyArg_ParseTuple(args, "pO&pKO&O&O&O&KO&O&O&i", &bf16, read_shape, &shape, &causal, &mask, read_heads, &queries,
                        read_heads, &keys, read_heads, &values, read_heads, &gradient, &weights, read_heads,
                        &grad_queries, read_heads, &grad_keys, read_heads, &grad_values, &threads))
    return nullptr;
  return compute(bf16, [&](auto element) {
    using T = decltype(element);
    const ShortAttention<T> self{shape, causal != 0, pointer<bool>(mask), queries, keys, values};
    self.backward(gradient, pointer<float>(weights), grad_queries, grad_keys, grad_values, threads);
  });
}

}  // namespace nmtkit::bindings
