// One vector type for every instruction set, on the vector extensions of GCC and Clang; what they cannot say is
// written once for each set here, and nowhere else. A translation unit is compiled for one set, chosen by flags.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace gf {
namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int VECTORS = 16 / LANES;  // vectors in a panel

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));

inline vf load(const float* p) { vf v; std::memcpy(&v, p, sizeof v); return v; }
inline vi load(const int32_t* p) { vi v; std::memcpy(&v, p, sizeof v); return v; }
inline vi load_bytes(const void* p) { vi v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vf splat(float x) { return x - vf{}; }
inline vi splat(int32_t x) { return x - vi{}; }
inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }
inline vf abs(vf a) { return (vf)((vu)a & 0x7fffffffu); }
inline vf to_float(vi a) { return __builtin_convertvector(a, vf); }
// To the nearest integer, ties to even, for |a| < 2^22.
inline vi round_to_int(vf a) { return (vi)(a + 12582912.0f) - 0x4B400000; }

inline float sum(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s[LANES];
  std::memcpy(s, &v, sizeof v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  return s[0];
#endif
}
inline float largest(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float s[LANES];
  std::memcpy(s, &v, sizeof v);
  for (int i = 1; i < LANES; i++) s[0] = s[i] > s[0] ? s[i] : s[0];
  return s[0];
#endif
}
// A bit for each lane where a > b.
inline unsigned greater(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#else
  vi m = a > b;
  unsigned bits = 0;
  for (int i = 0; i < LANES; i++) bits |= (unsigned)(m[i] & 1) << i;
  return bits;
#endif
}

// e^x in float32 to about 2 ulp, for x ≤ 88; 0 below −87.9. Range reduction by ln 2 in two parts, then a polynomial
// (Cephes' expf).
inline vf exp(vf x) {
  x = max(x, splat(-88.0f));  // there the power of two below is 2⁻¹²⁷, whose bits are 0
  vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  vf r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-min(max(x, splat(-80.0f)), splat(80.0f)))); }

// Abramowitz and Stegun 7.1.26: |error| ≤ 1.5e-7.
inline vf erf(vf x) {
  vf a = abs(x), t = 1.0f / (1.0f + 0.3275911f * a);
  vf p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  vf y = 1.0f - p * exp(-a * a);
  return x < 0.0f ? -y : y;
}

// --- One step of a matrix product over a 32-bit group of inputs ------------------------------------------------------
// In: how an input is held; Broadcast: a group of one row, in all lanes; add(): accumulators += group · weights;
// MISSING: whether a row's sums begin with what add() leaves out.

// A 32-bit group in all lanes.
inline vi broadcast_group(const void* x) {
  int32_t group;
  std::memcpy(&group, x, 4);
  return splat(group);
}

struct Fp32 {
  typedef vf Acc;
  typedef float In;
  typedef vf Broadcast;
  static constexpr int GROUP = 1;
  static constexpr bool MISSING = false;
  static Broadcast broadcast(const In* x) { return splat(*x); }
  static Acc add(Acc acc, Broadcast x, vi w) { return acc + x * (vf)w; }
};

#if defined(__AVX512BF16__)
struct Bf16 {
  typedef vf Acc;
  typedef uint16_t In;
  typedef vi Broadcast;
  static constexpr int GROUP = 2;
  static constexpr bool MISSING = false;
  static Broadcast broadcast(const In* x) { return broadcast_group(x); }
  static Acc add(Acc acc, Broadcast x, vi w) { return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)w); }
};
#else
struct Bf16 {  // weights widen to float32; inputs are rounded to bfloat16 all the same, so that sets agree
  typedef vf Acc;
  typedef uint16_t In;
  struct Broadcast { vf even, odd; };
  static constexpr int GROUP = 2;
  static constexpr bool MISSING = false;
  static Broadcast broadcast(const In* x) {
    vu pair = (vu)broadcast_group(x);
    return {(vf)(pair << 16), (vf)(pair & 0xffff0000u)};
  }
  static Acc add(Acc acc, Broadcast x, vi w) {
    acc = acc + x.even * (vf)((vu)w << 16);
    return acc + x.odd * (vf)((vu)w & 0xffff0000u);
  }
};
#endif

// Signed inputs in [−127, 127]. Where the dot product takes unsigned inputs they are held plus 128, and 128 times the
// row's sum of weights is taken off afterwards.
struct Int8 {
  typedef vi Acc;
  typedef uint8_t In;
  static constexpr int GROUP = 4;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  static constexpr int OFFSET = 128;
#else
  static constexpr int OFFSET = 0;
#endif
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
  // |x| times ±w, where the complement ~w = −w − 1 stands for −w: every unit has a complement, few can change a sign.
  // What that leaves out, |x| for each x < 0, is the same for all outputs. Products of two are summed in 16 bits with
  // saturation, and stay within 2 · 127 · 128 < 2¹⁵.
  struct Broadcast { __m256i magnitude, negative; };
  static Broadcast broadcast(const In* x) {
    __m256i v = (__m256i)broadcast_group(x);
    return {_mm256_abs_epi8(v), _mm256_cmpgt_epi8(_mm256_setzero_si256(), v)};
  }
  static Acc add(Acc acc, Broadcast x, vi w) { return add_unsigned(acc, x.magnitude, w ^ (vi)x.negative); }
  static Acc add_unsigned(Acc acc, __m256i x, vi w) {
    return acc + (vi)_mm256_madd_epi16(_mm256_maddubs_epi16(x, (__m256i)w), _mm256_set1_epi16(1));
  }
  static constexpr bool MISSING = true;
  typedef struct Int8NotNegative NoneMissing;
  // What a row's sums begin with.
  static int32_t missing(const In* x, int k) {
    int32_t sum = 0;
    for (int i = 0; i < k; i++) sum -= (int8_t)x[i] < 0 ? (int8_t)x[i] : 0;
    return sum;
  }
#else
  static constexpr bool MISSING = false;
  typedef vi Broadcast;
  static Broadcast broadcast(const In* x) { return broadcast_group(x); }
  static Acc add(Acc acc, Broadcast x, vi w) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)x, (__m512i)w);
#elif defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)x, (__m256i)w);
#elif defined(__ARM_FEATURE_DOTPROD)
    return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)x, (int8x16_t)w);
#else
    for (int shift = 24; shift >= 0; shift -= 8) acc += ((x << shift) >> 24) * ((w << shift) >> 24);
    return acc;
#endif
  }
#endif
};

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
// Inputs of which none is negative, such as those behind a ReLU, need no sign.
struct Int8NotNegative : Int8 {
  static constexpr bool MISSING = false;
  typedef vi Broadcast;
  static Broadcast broadcast(const In* x) { return broadcast_group(x); }
  static Acc add(Acc acc, Broadcast x, vi w) { return add_unsigned(acc, (__m256i)x, w); }
};
#endif

// How many panels of a head attention sums at once for up to four rows, and in how many parts it sums a score.
#if defined(__AVX512F__)
constexpr int MIX_PANELS = 4, SCORE_CHAINS = 4;
#else
constexpr int MIX_PANELS = 1, SCORE_CHAINS = 1;
#endif

// How many rows and panels a matrix product keeps in registers: accumulators, weights, what a row gives all lanes.
// ALONE: how many panels if there is one row only.
template <class T>
struct Tile {
#if defined(__AVX512F__)
  static constexpr int ROWS = 6, PANELS = 4, ALONE = 4;
#elif defined(__AVX2__)
  static constexpr int ROWS = 6, PANELS = 1, ALONE = 3;
#elif defined(__aarch64__)
  static constexpr int ROWS = 6, PANELS = 1, ALONE = 1;
#else
  static constexpr int ROWS = 2, PANELS = 1, ALONE = 1;
#endif
};
#if defined(__AVX2__) && !defined(__AVX512F__)
template <>
struct Tile<Bf16> {  // four rows: weights and inputs take two registers each
  static constexpr int ROWS = 4, PANELS = 1, ALONE = 3;
};
template <>
struct Tile<Int8> {
#if defined(__AVXVNNI__)
  static constexpr int ROWS = 6, PANELS = 1, ALONE = 1;
#else  // wide: what is done to an input serves six vectors of weights
  static constexpr int ROWS = 2, PANELS = 3, ALONE = 1;
#endif
};
#endif

}  // namespace
}  // namespace gf
