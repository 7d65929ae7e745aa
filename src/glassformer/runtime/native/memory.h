// Memory for one call: aligned, never cleared, and given back all at once.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <vector>

namespace gf {

// A thread's first exception needs memory of its own, and where that is lacking glibc ends the process. So it is asked for
// before a thread's work begins.
inline void prepare_to_throw() { (void)std::uncaught_exceptions(); }

class Arena {
 public:
  template <class T>
  T* take(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > left_ || !next_) grow(bytes);
    char* start = next_;
    next_ += bytes;
    left_ -= bytes;
    return reinterpret_cast<T*>(start);
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  void grow(size_t bytes) {
    const size_t size = bytes > BLOCK ? bytes : BLOCK;
    void* block = std::aligned_alloc(64, size);
    if (!block) throw std::bad_alloc();
    blocks_.emplace_back(block);
    next_ = static_cast<char*>(block);
    left_ = size;
  }

  static constexpr size_t BLOCK = 1 << 20;
  std::vector<std::unique_ptr<void, Free>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace gf
