// Memory for what searches keep. Fresh memory costs more than what is done in it, so what one search leaves serves the
// next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace nmtkit {

// A size that no int holds, or no memory; what is indexed by ints has fewer numbers than this. Python sees a MemoryError.
struct TooLarge : std::length_error {
  using std::length_error::length_error;
};

// The product of two sizes, far enough below the end of all memory to be rounded up. Throws TooLarge.
inline size_t product(size_t a, size_t b) {
  size_t result;
  if (__builtin_mul_overflow(a, b, &result) || result > PTRDIFF_MAX / 4) throw TooLarge("more memory than there can be");
  return result;
}

// Memory for numbers that grows, and then loses them: to fill and to copy a large one takes longer than to use it.
class Room {
 public:
  // Throws std::bad_alloc.
  void reserve(size_t size) {
    if (size <= size_) return;
    size_ = 0;
    numbers_.reset();
    numbers_.reset(new float[size]);
    size_ = size;
  }
  float* data() { return numbers_.get(); }

 private:
  size_t size_ = 0;
  std::unique_ptr<float[]> numbers_;
};

struct Piece {
  size_t size = 0;
  std::unique_ptr<std::byte[]> memory;
};

// What the last search left, and nothing of those before: so it never holds more than one search needed. Threads may
// share it.
class Spare {
 public:
  // A piece of at least so many bytes. Throws std::bad_alloc.
  Piece take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found =
          std::find_if(pieces_.begin(), pieces_.end(), [=](const Piece& piece) { return piece.size >= bytes; });
      if (found != pieces_.end()) {
        Piece piece = std::move(*found);
        pieces_.erase(found);
        return piece;
      }
    }
    size_t size = kLeast;  // a power of 2, so that it serves a somewhat larger search as well
    while (size < bytes) size *= 2;
    try {
      return {size, std::unique_ptr<std::byte[]>(new std::byte[size])};
    } catch (const std::bad_alloc&) {
      give_back({});  // what lies here unused may be what is missing
      return {bytes, std::unique_ptr<std::byte[]>(new std::byte[bytes])};
    }
  }

  void give_back(std::vector<Piece> pieces) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_ = std::move(pieces);
  }

 private:
  static constexpr size_t kLeast = size_t{4} << 20;

  std::mutex mutex_;
  std::vector<Piece> pieces_;
};

// The memory of one search, which goes back all at once.
class Arena {
 public:
  explicit Arena(std::shared_ptr<Spare> spare) : spare_(std::move(spare)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { spare_->give_back(std::move(pieces_)); }

  // So many bytes, aligned for vectors; what is in them is not known. Throws std::bad_alloc.
  void* take(size_t bytes) {
    bytes = (bytes + kAligned - 1) / kAligned * kAligned;
    if (pieces_.empty() || pieces_.back().size - used_ < bytes) {
      pieces_.reserve(pieces_.size() + 1);
      pieces_.push_back(spare_->take(bytes + kAligned));
      void* start = pieces_.back().memory.get();
      size_t size = pieces_.back().size;
      std::align(kAligned, bytes, start, size);
      used_ = pieces_.back().size - size;
    }
    void* taken = pieces_.back().memory.get() + used_;
    used_ += bytes;
    return taken;
  }

 private:
  static constexpr size_t kAligned = 64;

  std::shared_ptr<Spare> spare_;  // which may outlive the model
  std::vector<Piece> pieces_;
  size_t used_ = 0;  // of the last one
};

}  // namespace nmtkit
