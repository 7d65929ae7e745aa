// Threads that help one another, and never wait for one that the system has put aside.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gf {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One thread leads: it alone runs the program, and has the parts of a loop done by whoever is awake. Part i is meant for
// member i, whose cache then holds the same weights step after step; but the leader, once it has done its own, does those
// that nobody has begun. So on a machine whose cores are busy a team is as fast as its leader, not as its slowest member.
class Team {
 public:
  explicit Team(int size) : parts_(size > 0 ? size : 1), claims_(parts_) {
    for (auto& each : claims_) each.generation.store(0, std::memory_order_relaxed);
    try {
      for (int i = 1; i < parts_; i++) members_.emplace_back([this, i] { help(i); });
    } catch (const std::exception&) {
      // No more threads are to be had: the leader does their parts.
    }
  }
  ~Team() {
    over_.store(true, std::memory_order_release);
    for (auto& each : members_) each.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int parts() const { return parts_; }

  // work(first, last, part) over the `parts` shares of n items, each a multiple of `grain`. `work` must not throw.
  template <class Work>
  void each(int n, int grain, Work&& work) {
    const int grains = (n + grain - 1) / grain;
    if (parts_ == 1 || members_.empty() || grains < 2) {
      for (int part = 0; part < parts_; part++) run_share(n, grain, part, work);
      return;
    }
    auto share = [&](int part) { run_share(n, grain, part, work); };
    task_ = [](void* context, int part) { (*static_cast<decltype(share)*>(context))(part); };
    context_ = &share;
    done_.store(0, std::memory_order_relaxed);
    const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    generation_.store(generation, std::memory_order_release);
    for (int part = 0; part < parts_; part++) attempt(part, generation);
    for (int spins = 0; done_.load(std::memory_order_acquire) != parts_; spins++)
      spins < SPINS ? pause() : std::this_thread::yield();
  }

 private:
  static constexpr int SPINS = 4000;
  struct alignas(64) Claim {
    std::atomic<uint32_t> generation;
  };

  template <class Work>
  void run_share(int n, int grain, int part, Work& work) {
    const int64_t grains = (n + grain - 1) / grain;
    const int first = (int)(grains * part / parts_) * grain;
    const int last = (int)(grains * (part + 1) / parts_) * grain;
    work(first < n ? first : n, last < n ? last : n, part);
  }

  // The task may be read only once a part of it is claimed: until that part is done the leader cannot go on.
  void attempt(int part, uint32_t generation) {
    uint32_t before = generation - 1;
    if (!claims_[part].generation.compare_exchange_strong(before, generation, std::memory_order_acq_rel)) return;
    task_(context_, part);
    done_.fetch_add(1, std::memory_order_acq_rel);
  }

  void help(int own) {
    uint32_t seen = 0;
    for (int spins = 0; !over_.load(std::memory_order_acquire);) {
      const uint32_t generation = generation_.load(std::memory_order_acquire);
      if (generation != seen) {
        seen = generation;
        spins = 0;
        attempt(own, generation);
      } else if (spins++ < SPINS) {
        pause();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }

  const int parts_;
  std::vector<Claim> claims_;
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<bool> over_{false};
  std::vector<std::thread> members_;
};

// Runs work(i) for i < count on so many threads, or on as many as are to be had, and gives the first exception on.
inline void side_by_side(int count, int threads, const std::function<void(int)>& work) {
  std::exception_ptr failure;
  std::mutex lock;
  std::atomic<int> next{0};
  auto run = [&] {
    prepare_to_throw();
    for (int i; (i = next.fetch_add(1)) < count;) {
      try {
        work(i);
      } catch (...) {
        std::lock_guard<std::mutex> hold(lock);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(threads);
    while ((int)others.size() + 1 < threads) others.emplace_back(run);
  } catch (const std::exception&) {
  }
  run();
  for (auto& each : others) each.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace gf
