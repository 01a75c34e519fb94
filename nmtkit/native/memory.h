// Memory that searches reuse: allocating fresh memory and filling it costs more than the computation in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

namespace nmtkit {

constexpr size_t kAlignment = 64;  // bytes: a cache line, and the largest vector

// A size that overflows, or exceeds the limits of int indices. Python raises MemoryError.
struct TooLarge : std::length_error {
  using std::length_error::length_error;
};

// a · b, small enough to be rounded up without overflow. Throws TooLarge.
inline size_t checked_product(size_t a, size_t b) {
  size_t result;
  if (__builtin_mul_overflow(a, b, &result) || result > PTRDIFF_MAX / 4) throw TooLarge("size overflow");
  return result;
}

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], FreeDeleter>;

// Zeros. Throws TooLarge, std::bad_alloc.
template <class T>
AlignedArray<T> make_aligned(size_t count) {
  const size_t bytes = (checked_product(count, sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, std::max(bytes, kAlignment));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return AlignedArray<T>(static_cast<T*>(memory));
}

// Fetch memory into the L2 cache, for computations that wait for memory longer than they compute.
inline void prefetch(const void* begin, const void* end) {
  for (auto at = static_cast<const char*>(begin); at < end; at += kAlignment) __builtin_prefetch(at, 0, 2);
}

// Floats that grow without being copied or initialized, unlike a std::vector.
class Buffer {
 public:
  // Drops the contents if it has to grow. Throws std::bad_alloc.
  void reserve(size_t size) {
    if (size <= size_) return;
    size_ = 0;
    data_.reset();
    data_.reset(new float[size]);
    size_ = size;
  }
  float* data() { return data_.get(); }

 private:
  size_t size_ = 0;
  std::unique_ptr<float[]> data_;
};

struct Block {
  size_t size = 0;
  std::unique_ptr<std::byte[]> memory;
};

// The blocks of the last finished search, for the next one. It never holds more than one search needed. Thread-safe.
class BlockPool {
 public:
  // A block of at least `bytes`. Throws std::bad_alloc.
  Block take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found =
          std::find_if(blocks_.begin(), blocks_.end(), [=](const Block& block) { return block.size >= bytes; });
      if (found != blocks_.end()) {
        Block block = std::move(*found);
        blocks_.erase(found);
        return block;
      }
    }
    size_t size = kMinBlock;  // a power of 2, so that it also serves a slightly larger search
    while (size < bytes) size *= 2;
    try {
      return {size, std::unique_ptr<std::byte[]>(new std::byte[size])};
    } catch (const std::bad_alloc&) {
      give_back({});  // frees the unused blocks, then takes no more than needed
      return {bytes, std::unique_ptr<std::byte[]>(new std::byte[bytes])};
    }
  }

  void give_back(std::vector<Block> blocks) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_ = std::move(blocks);
  }

 private:
  static constexpr size_t kMinBlock = size_t{4} << 20;

  std::mutex mutex_;
  std::vector<Block> blocks_;
};

// The memory of one search, released all at once.
class Arena {
 public:
  explicit Arena(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { pool_->give_back(std::move(blocks_)); }

  // Aligned, uninitialized. Throws std::bad_alloc.
  void* take(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (blocks_.empty() || blocks_.back().size - used_ < bytes) {
      blocks_.reserve(blocks_.size() + 1);
      blocks_.push_back(pool_->take(bytes + kAlignment));
      void* start = blocks_.back().memory.get();
      size_t size = blocks_.back().size;
      std::align(kAlignment, bytes, start, size);
      used_ = blocks_.back().size - size;
    }
    void* taken = blocks_.back().memory.get() + used_;
    used_ += bytes;
    return taken;
  }

 private:
  std::shared_ptr<BlockPool> pool_;  // may outlive the model
  std::vector<Block> blocks_;
  size_t used_ = 0;  // bytes of the last block
};

}  // namespace nmtkit
