// The key-value cache of decoder self-attention, and the states of SSRUs.
#pragma once

#include <numeric>

#include "model.h"

namespace nmtkit {

// Keys and values of all positions so far. They are written once and never copied: `reorder` only changes which of them
// belong to which row.
class KeyValueCache {
 public:
  KeyValueCache(const Model& model, Arena& arena) : model_(model), arena_(arena) {}

  int length() const { return static_cast<int>(positions_.size()); }

  // Allocate a position for so many rows. Throws TooLarge, std::bad_alloc, and then changes nothing.
  void append(int rows) {
    std::vector<int32_t> own(rows);
    std::iota(own.begin(), own.end(), 0);
    positions_.reserve(positions_.size() + 1);
    parents_.reserve(parents_.size() + 1);
    positions_.push_back(allocate_kv(model_, arena_, rows, model_.decoder.size()));
    parents_.push_back(std::move(own));
  }

  // Row i continues the row origins[i]. Throws std::bad_alloc, and then changes nothing.
  void reorder(const int64_t* origins, int rows) {
    std::vector<std::vector<int32_t>> parents;
    for (const auto& column : parents_) {
      std::vector<int32_t> moved(rows);
      for (int i = 0; i < rows; ++i) moved[i] = column[origins[i]];
      parents.push_back(std::move(moved));
    }
    parents_ = std::move(parents);
  }

  // The keys (H, K), then the values (H, V), that a row has at position t in a layer, of type T.
  template <class T>
  T* at(int t, int row, size_t layer) const {
    const size_t entry = static_cast<size_t>(parents_[t][row]) * model_.decoder.size() + layer;
    return static_cast<T*>(positions_[t]) + entry * model_.kv_width();
  }

 private:
  const Model& model_;
  Arena& arena_;
  std::vector<void*> positions_;               // by position: (rows then, layers, H·(K + V))
  std::vector<std::vector<int32_t>> parents_;  // by position: (R,) the ancestor there of each row
};

// The states (layers, D) of each row, with SSRUs; initially 0.
class SsruStates {
 public:
  SsruStates(const Model& model, int rows)
      : width_(model.d_model), row_size_(model.has_ssru() ? model.decoder.size() * width_ : 0), states_(rows * row_size_) {}

  // Row i continues the row origins[i]. Throws std::bad_alloc, and then changes nothing.
  void reorder(const int64_t* origins, int rows) {
    std::vector<float> moved(rows * row_size_);
    for (int i = 0; i < rows; ++i)
      std::copy_n(states_.data() + origins[i] * row_size_, row_size_, moved.data() + i * row_size_);
    states_ = std::move(moved);
  }

  float* at(int row, size_t layer) { return states_.data() + row * row_size_ + layer * width_; }

 private:
  const size_t width_, row_size_;  // floats of a state, and of a row
  std::vector<float> states_;
};

}  // namespace nmtkit
