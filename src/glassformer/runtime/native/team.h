// A team of threads that run one function together, each on its share.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gf {

// Waits by spinning, since steps between barriers take microseconds; a thread that has spun for long lets others run,
// so that more threads than free cores are slow rather than stuck.
class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}
  void wait() {
    if (size_ == 1) return;
    const int generation = generation_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      waiting_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; spins++) {
      if (spins < 4000) {
#if defined(__x86_64__)
        _mm_pause();
#endif
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  const int size_;
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<int> generation_{0};
};

struct Team {
  int id, size;
  Barrier* barrier;

  void wait() const { barrier->wait(); }
  std::pair<int, int> share(int n) const { return {(int)((int64_t)n * id / size), (int)((int64_t)n * (id + 1) / size)}; }
};

// Runs work(team) on `size` threads, the caller's among them, or on as many as can be started, and gives the first
// exception on. A member must not throw between two barriers: the others would wait for it for ever.
inline void run_team(int size, const std::function<void(const Team&)>& work) {
  std::exception_ptr failure;
  std::mutex lock;
  std::unique_ptr<Barrier> barrier;
  std::atomic<int> members{0};  // 0: not known yet
  auto member = [&](int id) {
    int count;
    while (!(count = members.load(std::memory_order_acquire))) std::this_thread::yield();
    try {
      work(Team{id, count, barrier.get()});
    } catch (...) {
      std::lock_guard<std::mutex> hold(lock);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(size);
    while ((int)others.size() + 1 < size) others.emplace_back(member, (int)others.size() + 1);
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are do the work.
  }
  barrier = std::make_unique<Barrier>((int)others.size() + 1);
  members.store((int)others.size() + 1, std::memory_order_release);
  member(0);
  for (auto& each : others) each.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace gf
