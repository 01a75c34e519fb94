// How work is shared out among threads: parts of a batch, or the columns of products of few rows.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace nmtkit {

// Call work(part, thread) for each part from 0 to `parts`, by `threads` side by side, each taking the next that nobody
// has taken: a core may be slower than the others for a while. `work` may not throw.
template <class Work>
void share_out(int parts, int threads, Work work) {
  std::atomic<int> next{0};
  const auto take = [&](int thread) {
    for (int part; (part = next++) < parts;) work(part, thread);
  };
  std::vector<std::thread> others;
  others.reserve(std::max(threads, 1));
  try {
    while (static_cast<int>(others.size()) + 1 < std::min(threads, parts))
      others.emplace_back(take, static_cast<int>(others.size()) + 1);
  } catch (const std::exception&) {  // no more threads are to be had
  }
  take(0);
  for (auto& other : others) other.join();
}

// Threads that do one small job after another together, each of which takes less time than to start a thread: between
// two jobs they wait without sleeping, so a team is for no longer than a step.
class Team {
 public:
  explicit Team(int threads) {
    others_.reserve(std::max(threads, 1));
    try {
      while (static_cast<int>(others_.size()) + 1 < threads) others_.emplace_back([this] { help(); });
    } catch (const std::exception&) {  // no more threads are to be had
    }
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    ended_.store(true, std::memory_order_release);
    for (auto& other : others_) other.join();
  }

  int size() const { return static_cast<int>(others_.size()) + 1; }

  // Call work(part) for each part from 0 to `parts`, 65,535 at most, and return when all are done. `work` may not throw.
  template <class Work>
  void share(int parts, const Work& work) {
    work_ = &work;
    call_ = [](const void* known, int part) { (*static_cast<const Work*>(known))(part); };
    done_.store(0, std::memory_order_relaxed);
    open_.store(++job_ << 32 | static_cast<uint64_t>(parts) << 16, std::memory_order_release);
    take();
    wait([&] { return done_.load(std::memory_order_acquire) == parts; });
  }

 private:
  // Do parts of the job at hand, as long as there are any that nobody has taken.
  void take() {
    uint64_t open = open_.load(std::memory_order_acquire);
    for (;;) {
      const int next = open & 0xffff, parts = open >> 16 & 0xffff;
      if (next >= parts) return;
      // With its number in it, this is never another job's. Until the part is done, no other begins.
      if (!open_.compare_exchange_weak(open, open + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      call_(work_, next);
      done_.fetch_add(1, std::memory_order_release);
      open = open_.load(std::memory_order_acquire);
    }
  }

  void help() {
    wait([this] {
      take();
      return ended_.load(std::memory_order_acquire);
    });
  }

  // Look again and again, and let others have the core where it takes long.
  template <class Done>
  static void wait(Done done) {
    for (int looks = 0; !done(); ++looks) looks < 1000 ? _mm_pause() : std::this_thread::yield();
  }

  std::vector<std::thread> others_;
  const void* work_ = nullptr;
  void (*call_)(const void* work, int part) = nullptr;
  uint64_t job_ = 0;
  std::atomic<uint64_t> open_{0};  // number of the job, its parts, and the next of them
  std::atomic<int> done_{0};       // parts of it
  std::atomic<bool> ended_{false};
};

}  // namespace nmtkit
