// Which sets of kernels were built, which of them this processor has, and which is best.
#include <cstring>
#include <string>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace gf {

// build.py defines GF_SETS as X(avx512_bf16) X(avx512) … in the order of preference, and GF_HAS_… for each of them.
#define X(set) extern const Kernels kernels_##set;
GF_SETS
#undef X

namespace {

bool runs(const char* set) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
#if defined(GF_HAS_avx512_bf16)
  if (!std::strcmp(set, "avx512_bf16")) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
#if defined(GF_HAS_avx_vnni)
  if (!std::strcmp(set, "avx_vnni")) return avx2 && __builtin_cpu_supports("avxvnni");
#endif
  if (!std::strcmp(set, "avx512")) return avx512;
  if (!std::strcmp(set, "avx2")) return avx2;
#elif defined(__aarch64__)
  if (!std::strcmp(set, "neon_dot")) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & 1 << 20;  // HWCAP_ASIMDDP
#else
    return true;  // every Apple processor has it
#endif
  }
#endif
  return !std::strcmp(set, "portable");
}

const Kernels* const built[] = {
#define X(set) &kernels_##set,
    GF_SETS
#undef X
};

}  // namespace

const Kernels* kernels(const char* set) {
  for (const Kernels* each : built)
    if (!std::strcmp(each->name, set) && runs(set)) return each;
  return nullptr;
}

const Kernels& kernels() {
  static const Kernels* best = [] {
    for (const Kernels* each : built)
      if (runs(each->name)) return each;
    return built[sizeof built / sizeof *built - 1];
  }();
  return *best;
}

const char* kernel_sets() {
  static const std::string names = [] {
    std::string all;
    for (const Kernels* each : built)
      if (runs(each->name)) all += (all.empty() ? "" : " ") + std::string(each->name);
    return all;
  }();
  return names.c_str();
}

}  // namespace gf
