// The shortlists of a batch: the tokens that the output of each sentence may contain.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "log_softmax.h"
#include "row_matrix.h"

namespace nmtkit {

class Shortlists {
 public:
  // The tokens of sentence b are ids[starts[b]] to ids[starts[b + 1] - 1], at least one, in ascending order. Throws
  // std::out_of_range for others and for ids that are never output, std::bad_alloc.
  Shortlists(const RowMatrix& output, const int32_t* ids, const int64_t* starts, int sentences)
      : output_(output), ids_(ids, ids + starts[sentences]), starts_(starts, starts + sentences + 1) {
    for (int b = 0; b < sentences; ++b) {
      if (size(b) < 1 || size(b) > output.rows()) throw std::out_of_range("a shortlist has no tokens, or too many");
      longest_ = std::max(longest_, size(b));
      for (int j = 0; j < size(b); ++j) check(ids_[starts_[b] + j], j ? ids_[starts_[b] + j - 1] : -1);
    }
  }

  const RowMatrix& output() const { return output_; }
  const int32_t* ids(int b) const { return ids_.data() + starts_[b]; }
  int size(int b) const { return static_cast<int>(starts_[b + 1] - starts_[b]); }
  int longest() const { return longest_; }
  int sentences() const { return static_cast<int>(starts_.size()) - 1; }

 private:
  void check(int32_t id, int32_t before) const {
    const bool is_output = std::find(std::begin(kNeverOutput), std::end(kNeverOutput), id) == std::end(kNeverOutput);
    if (id <= before || id >= output_.rows() || !is_output)
      throw std::out_of_range("a shortlist cannot have the token " + std::to_string(id));
  }

  const RowMatrix& output_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_;
  int longest_ = 0;
};

}  // namespace nmtkit
