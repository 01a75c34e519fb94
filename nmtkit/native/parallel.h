// Rows of a batch shared among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#ifdef __linux__
// Of GNU OpenMP, which torch has loaded. Null in a process without it.
extern "C" void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags) __attribute__((weak));
#endif

namespace nmtkit {

constexpr int kRowBlock = 120;    // rows that one pass over a matrix serves: they stay in the L1 and L2 caches
constexpr int kMinThreadRows = 8;  // rows that are worth a thread

// Call body(i, thread) for 0 <= i < count on up to `threads` threads. Each takes the next i when it is free, since
// cores may differ in speed. `body` must not throw.
template <class Body>
void parallel_for(int count, int threads, Body body) {
  std::atomic<int> next{0};
  const auto run = [&](int thread) {
    for (int i; (i = next++) < count;) body(i, thread);
  };
  std::vector<std::thread> others;
  others.reserve(std::max(std::min(threads, count), 1));
  try {
    while (static_cast<int>(others.size()) + 1 < std::min(threads, count))
      others.emplace_back(run, static_cast<int>(others.size()) + 1);
  } catch (const std::exception&) {  // the system has no more threads
  }
  run(0);
  for (auto& other : others) other.join();
}

// As `parallel_for`, but on the OpenMP threads of torch where the process has GNU OpenMP: those wait actively after each
// operator, so other threads would compete with them for the cores.
template <class Body>
void team_for(int count, int threads, Body body) {
#ifdef __linux__
  if (threads > 1 && count > 1 && GOMP_parallel) {
    struct Team {
      int count;
      Body& body;
      std::atomic<int> next{0}, thread{0};
    } team{count, body};
    const auto run = [](void* data) {
      Team& own = *static_cast<Team*>(data);
      const int thread = own.thread++;
      for (int i; (i = own.next++) < own.count;) own.body(i, thread);
    };
    GOMP_parallel(run, &team, static_cast<unsigned>(threads), 0);
    return;
  }
#endif
  parallel_for(count, threads, body);
}

// Splits rows into blocks of about the same size. They are as large as the number of threads allows, since each block
// reads all weights once.
class RowBlocks {
 public:
  RowBlocks(int rows, int threads) : rows_(rows) {
    const int64_t least = (int64_t{rows} + kRowBlock - 1) / kRowBlock;
    const int64_t most = std::max<int64_t>(least, rows / kMinThreadRows);
    threads = std::max(threads, 1);
    count_ = static_cast<int>(std::min((least + threads - 1) / threads * threads, most));
  }

  int count() const { return count_; }
  int max_size() const { return count_ ? (rows_ - 1) / count_ + 1 : 0; }
  int begin(int block) const { return static_cast<int>(static_cast<int64_t>(rows_) * block / count_); }
  int end(int block) const { return begin(block + 1); }

 private:
  int rows_, count_;
};

}  // namespace nmtkit
