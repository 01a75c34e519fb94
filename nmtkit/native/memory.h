// Memory for what searches keep. Fresh memory costs more than what is done in it, so what one search leaves serves the
// next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace nmtkit {

// Pieces that no search has at the moment. Threads may share it.
class Spare {
 public:
  struct Piece {
    size_t size = 0;
    std::unique_ptr<std::byte[]> memory;
  };

  // One of at least so many bytes. Throws std::bad_alloc.
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
    const size_t size = std::max(bytes, kPiece);
    return {size, std::unique_ptr<std::byte[]>(new std::byte[size])};
  }

  // What there is no room to note is freed.
  void give_back(Piece piece) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      pieces_.push_back(std::move(piece));
    } catch (const std::bad_alloc&) {
    }
  }

 private:
  static constexpr size_t kPiece = size_t{4} << 20;

  std::mutex mutex_;
  std::vector<Piece> pieces_;
};

// The memory of one search, which goes back all at once.
class Arena {
 public:
  explicit Arena(Spare& spare) : spare_(spare) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (auto& piece : pieces_) spare_.give_back(std::move(piece));
  }

  // So many bytes, aligned for vectors; what is in them is not known. Throws std::bad_alloc.
  void* take(size_t bytes) {
    bytes = (bytes + kAligned - 1) / kAligned * kAligned;
    if (pieces_.empty() || pieces_.back().size - used_ < bytes) {
      pieces_.reserve(pieces_.size() + 1);
      pieces_.push_back(spare_.take(bytes + kAligned));
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

  Spare& spare_;
  std::vector<Spare::Piece> pieces_;
  size_t used_ = 0;  // of the last one
};

}  // namespace nmtkit
