// Compiled once for each instruction set; GF_SET names it.
#include "kernels.h"

#include <cmath>
#include <limits>

#include "simd.h"

#define GF_JOIN2(a, b) a##b
#define GF_JOIN(a, b) GF_JOIN2(a, b)
#define GF_STRING2(a) #a
#define GF_STRING(a) GF_STRING2(a)

namespace gf {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();

// --- inputs ----------------------------------------------------------------------------------------------------------

void quantise(const float* x, int k, uint8_t* out, float* scale) {
  vf most = splat(0.0f), poison = splat(0.0f);  // an integer holds no NaN, so that the scale has to
  for (int i = 0; i < k; i += LANES) {
    vf v = load(x + i);
    most = max(most, abs(v));
    poison += v * 0.0f;
  }
  float m = largest(most);
  *scale = m / 127.0f + sum(poison);
  // A row of zeros, or one so small that 127 / m is not finite, is zero.
  float factor = m > 1e-35f ? 127.0f / m : 0.0f;
  for (int i = 0; i < k; i += LANES) {
    vi q = round_to_int(load(x + i) * factor) + Int8::OFFSET;
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)(out + i), _mm512_cvtepi32_epi8((__m512i)q));
#elif defined(__AVX2__)
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)q), _mm256_extracti128_si256((__m256i)q, 1));
    _mm_storel_epi64((__m128i*)(out + i), Int8::OFFSET ? _mm_packus_epi16(words, words) : _mm_packs_epi16(words, words));
#else
    for (int j = 0; j < LANES; j++) out[i + j] = (uint8_t)q[j];
#endif
  }
}

uint16_t to_bf16(float x) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

void prepare(int32_t type, const float* x, int rows, int stride, int k, void* inputs, float* scales) {
  for (int r = 0; r < rows; r++) {
    const float* row = x + (size_t)r * stride;
    if (type == INT8) {
      quantise(row, k, (uint8_t*)inputs + (size_t)r * k, scales + r);
    } else if (type == BF16) {
      uint16_t* out = (uint16_t*)inputs + (size_t)r * k;
      for (int i = 0; i < k; i++) out[i] = to_bf16(row[i]);
    } else {
      std::memcpy((float*)inputs + (size_t)r * k, row, (size_t)k * 4);
    }
  }
}

// --- products --------------------------------------------------------------------------------------------------------

vf activate(vf x, int32_t activation) {
  switch (activation) {
    case RELU: return max(x, splat(0.0f));
    case GELU: return 0.5f * x * (1.0f + erf(x * 0.70710678f));
    case GELU_TANH: return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));  // tanh(u) = 2 sigmoid(2u) − 1
    case SILU: return x * sigmoid(x);
    default: return x;
  }
}

inline vf finish(const Linear& l, int n, vi acc, float scale) {
  vi exact = Int8::OFFSET ? acc - Int8::OFFSET * load(l.row_sums + n) : acc;
  return to_float(exact) * (load(l.scale + n) * scale) + load(l.bias + n);
}
inline vf finish(const Linear& l, int n, vf acc, float) { return acc + load(l.bias + n); }

// Prepared inputs, and of int8 their scales and what their sums begin with.
template <class T>
struct Rows {
  const typename T::In* x;
  const float* scales;
  const int32_t* missing;
};

// Weights that will be wanted next and are fetched meanwhile, a line of each panel at every step: one panel, and another
// `more` bytes behind it unless 0; null: the panels in hand, a little ahead.
struct Ahead {
  const char* panel;
  size_t more;
};

template <class T, int ROWS, int PANELS>
void tile(const Linear& l, const Rows<T>& in, int panel, Ahead ahead, float* y, int stride, int32_t activation) {
  const int groups = l.k / T::GROUP;
  const char* weights[PANELS];
  for (int p = 0; p < PANELS; p++) weights[p] = (const char*)l.weight + (size_t)(panel + p) * groups * 64;
  typename T::Acc acc[ROWS][PANELS * VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int i = 0; i < PANELS * VECTORS; i++) {
      acc[r][i] = typename T::Acc{};
      if constexpr (T::MISSING) acc[r][i] += in.missing[r];
    }
  for (int g = 0; g < groups; g++) {
    vi w[PANELS * VECTORS];
    if (ahead.panel) {
      __builtin_prefetch(ahead.panel + (size_t)g * 64);
      if (ahead.more) __builtin_prefetch(ahead.panel + ahead.more + (size_t)g * 64);
    } else {
#pragma GCC unroll 16
      for (int p = 0; p < PANELS; p++) __builtin_prefetch(weights[p] + (size_t)g * 64 + 2048);
    }
#pragma GCC unroll 16
    for (int p = 0; p < PANELS; p++) {
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) w[p * VECTORS + v] = load_bytes(weights[p] + (size_t)g * 64 + v * LANES * 4);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      auto x = T::broadcast(in.x + (size_t)r * l.k + (size_t)g * T::GROUP);
#pragma GCC unroll 16
      for (int i = 0; i < PANELS * VECTORS; i++) acc[r][i] = T::add(acc[r][i], x, w[i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
    for (int i = 0; i < PANELS * VECTORS; i++) {
      int n = panel * PANEL + i * LANES;
      store(y + (size_t)r * stride + n, finish(l, n, acc[r][i], in.scales ? in.scales[r] : 1.0f));
    }
  if (activation == NONE) return;
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < PANELS * VECTORS; i++) {
      float* at = y + (size_t)r * stride + panel * PANEL + i * LANES;
      store(at, activate(load(at), activation));
    }
}
// tile() for `rows` of at most ROWS and `panels` of at most PANELS.
template <class T, int ROWS, int PANELS>
void tile_of(int rows, int panels, const Linear& l, const Rows<T>& in, int panel, Ahead ahead, float* y, int stride,
             int32_t activation) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return tile_of<T, ROWS - 1, PANELS>(rows, panels, l, in, panel, ahead, y, stride, activation);
  if constexpr (PANELS > 1)
    if (panels < PANELS) return tile_of<T, ROWS, PANELS - 1>(rows, panels, l, in, panel, ahead, y, stride, activation);
  if constexpr (T::MISSING) {
    int32_t missing = 0;
    for (int r = 0; r < ROWS; r++) missing |= in.missing[r];
    typedef typename T::NoneMissing Whole;
    const Rows<Whole> whole{in.x, in.scales, nullptr};
    if (!missing) return tile<Whole, ROWS, PANELS>(l, whole, panel, ahead, y, stride, activation);
  }
  tile<T, ROWS, PANELS>(l, in, panel, ahead, y, stride, activation);
}

template <class T, int ROWS, int PANELS>
void tiles(const Linear& l, const void* inputs, const float* scales, int rows, int first, int last, float* y, int stride,
           int32_t activation) {
  constexpr int MOST_ROWS = 256, MOST_BYTES = 1 << 17;
  const auto* x = (const typename T::In*)inputs;
  // Chunks of rows that stay in the second cache, panels inside, and rows again inside these: a few panels stay in the
  // first cache while the chunk passes. All are shared out evenly, so that no tile is much smaller than the others.
  const int fit = MOST_BYTES / (l.k * (int)sizeof *x), most = fit < 1 ? 1 : fit > MOST_ROWS ? MOST_ROWS : fit;
  const auto begin = [](int n, int part, int parts) { return int(int64_t(n) * part / parts); };
  const auto parts = [](int n, int largest) { return (n + largest - 1) / largest; };
  const size_t bytes = (size_t)l.k / T::GROUP * 64;  // of a panel
  const char* weights = (const char*)l.weight + first * bytes;
  const int chunks = parts(rows, most), groups = parts(last - first, PANELS);
  for (int c = 0; c < chunks; c++) {
    const int start = begin(rows, c, chunks), size = begin(rows, c + 1, chunks) - start;
    const int blocks = parts(size, ROWS);
    int32_t missing[MOST_ROWS];
    if constexpr (T::MISSING)
      for (int r = 0; r < size; r++) missing[r] = T::missing(x + (size_t)(start + r) * l.k, l.k);
    for (int group = 0; group < groups; group++) {
      const int panel = begin(last - first, group, groups), panels = begin(last - first, group + 1, groups) - panel;
      for (int b = 0; b < blocks; b++) {
        const int from = begin(size, b, blocks), count = begin(size, b + 1, blocks) - from, row = start + from;
        Ahead ahead{nullptr, 0};  // the blocks of rows share the next group's panels out
        if (blocks > 1)
          ahead = {weights + (size_t)(panel + (b < panels ? panels + b : 0)) * bytes,
                   b + blocks < panels ? blocks * bytes : 0};
        const Rows<T> in{x + (size_t)row * l.k, scales ? scales + row : nullptr, missing + from};
        tile_of<T, ROWS, PANELS>(count, panels, l, in, first + panel, ahead, y + (size_t)row * stride, stride, activation);
      }
    }
  }
}

template <class T>
void product_of(const Linear& l, const void* inputs, const float* scales, int rows, int first, int last, float* y,
                int stride, int32_t activation) {
  if (rows == 1) return tiles<T, 1, Tile<T>::ALONE>(l, inputs, scales, 1, first, last, y, stride, activation);
  tiles<T, Tile<T>::ROWS, Tile<T>::PANELS>(l, inputs, scales, rows, first, last, y, stride, activation);
}

void product(const Linear& l, const void* inputs, const float* scales, int rows, int first, int last, float* y,
             int stride, int32_t activation) {
  switch (l.type) {
    case INT8: return product_of<Int8>(l, inputs, scales, rows, first, last, y, stride, activation);
    case BF16: return product_of<Bf16>(l, inputs, nullptr, rows, first, last, y, stride, activation);
    default: return product_of<Fp32>(l, inputs, nullptr, rows, first, last, y, stride, activation);
  }
}

// --- rows ------------------------------------------------------------------------------------------------------------

void layer_norm(const float* x, int d, int width, const Norm& norm, float* out) {
  float mean = 0.0f, squares = 0.0f;
  if (norm.rms) {
    vf total = splat(0.0f);
    for (int i = 0; i < width; i += LANES) total += load(x + i) * load(x + i);
    squares = sum(total);
  } else {
    vf total = splat(0.0f);
    for (int i = 0; i < width; i += LANES) total += load(x + i);
    mean = sum(total) / d;
    vf centred_squares = splat(0.0f);
    for (int i = 0; i < width; i += LANES) {
      vf centred = load(x + i) - mean;
      centred_squares += centred * centred;
    }
    // Features beyond d are zero: what they add to the squares is taken off.
    squares = sum(centred_squares) - (width - d) * mean * mean;
  }
  const float factor = 1.0f / std::sqrt(squares / d + norm.eps);
  for (int i = 0; i < width; i += LANES)
    store(out + i, (load(x + i) - mean) * factor * load(norm.gain + i) + load(norm.bias + i));
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += LANES) store(x + i, load(x + i) + load(y + i));
}

void embed(const Linear& table, int32_t id, float factor, float* out) {
  const int panel = id / PANEL, lane = id % PANEL;
  const char* column = (const char*)table.weight + lane * 4;
  if (table.type == INT8) {
    factor *= table.scale[id];
    const int groups = table.k / 4;
    for (int g = 0; g < groups; g++) {
      const int8_t* four = (const int8_t*)(column + ((size_t)panel * groups + g) * 64);
      for (int i = 0; i < 4; i++) out[g * 4 + i] = four[i] * factor;
    }
  } else if (table.type == BF16) {
    const int groups = table.k / 2;
    for (int g = 0; g < groups; g++) {
      uint32_t pair;
      std::memcpy(&pair, column + ((size_t)panel * groups + g) * 64, 4);
      for (int i = 0; i < 2; i++, pair >>= 16) {
        uint32_t bits = pair << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        out[g * 2 + i] = value * factor;
      }
    }
  } else {
    for (int g = 0; g < table.k; g++) {
      float value;
      std::memcpy(&value, column + ((size_t)panel * table.k + g) * 64, 4);
      out[g] = value * factor;
    }
  }
}

void turn(float* x, const float* cosines, const float* sines, int half) {
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

void gate(float* x, int n, int32_t activation) {
  for (int i = 0; i < n; i += LANES) store(x + i, activate(load(x + i), activation) * load(x + n + i));
}

void balance(const float* x, int n, const float* factors, const int32_t* columns, int extras, float* out) {
  for (int i = 0; i < n; i += LANES) store(out + i, load(x + i) * load(factors + i));
  for (int i = 0; i < extras; i++) out[n + i] = x[columns[i]] * factors[n + i];
}

// --- attention -------------------------------------------------------------------------------------------------------

void transpose_keys(const float* keys, int s, int stride, int head_size, float* transposed) {
  for (int block = 0; block < s; block += PANEL, transposed += PANEL * head_size) {
    const int count = s - block < PANEL ? s - block : PANEL;
    const float* from = keys + (size_t)block * stride;
    for (int e = 0; e < head_size; e++)
      for (int j = 0; j < PANEL; j++) transposed[e * PANEL + j] = j < count ? from[(size_t)j * stride + e] : 0.0f;
  }
}

// Scores to weights that sum to 1, over n of `padded` places; the places behind n become 0.
void softmax(float* scores, int n, int padded) {
  for (int i = n; i < padded; i++) scores[i] = -INF;
  vf most = splat(-INF);
  for (int i = 0; i < padded; i += LANES) most = max(most, load(scores + i));
  const float shift = largest(most);
  vf total = splat(0.0f);
  for (int i = 0; i < padded; i += LANES) {
    vf e = exp(load(scores + i) - shift);
    store(scores + i, e);
    total += e;
  }
  const float factor = 1.0f / sum(total);
  for (int i = 0; i < padded; i += LANES) store(scores + i, load(scores + i) * factor);
}

// Sums of `weights` · values for ROWS queries and WIDE panels of a head's features; value(j) is where position j's begin.
template <int ROWS, int WIDE, class Value>
void mix(const float* weights, int padded, int n, Value value, float* out, int out_stride) {
  vf acc[ROWS][WIDE * VECTORS] = {};
  for (int j = 0; j < n; j++) {
    const float* v = value(j);
#pragma GCC unroll 16
    for (int i = 0; i < WIDE * VECTORS; i++) {
      const vf each = load(v + i * LANES);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) acc[r][i] += weights[(size_t)r * padded + j] * each;
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < WIDE * VECTORS; i++) store(out + (size_t)r * out_stride + i * LANES, acc[r][i]);
}

template <int ROWS, class Value>
void mix_head(const float* weights, int padded, int n, Value value, int head_size, float* out, int out_stride) {
  int e = 0;
  auto from = [&](int j) { return value(j) + e; };
  for (; head_size - e >= MIX_PANELS * PANEL; e += MIX_PANELS * PANEL)
    mix<ROWS, MIX_PANELS>(weights, padded, n, from, out + e, out_stride);
  for (; e < head_size; e += PANEL) mix<ROWS, 1>(weights, padded, n, from, out + e, out_stride);
}

template <int ROWS>
void attend_rows(const float* q, int q_stride, const float* transposed_keys, const float* values, int v_stride, int s,
                 int head_size, float* out, int out_stride, float* scratch) {
  // Sums side by side, so that a step need not wait for the last; as many for any number of rows, so that a row's scores
  // do not depend on it.
  constexpr int CHAINS = SCORE_CHAINS;
  const int padded = (s + PANEL - 1) / PANEL * PANEL;
  const float* keys = transposed_keys;
  for (int block = 0; block < padded; block += PANEL, keys += PANEL * head_size) {
    vf acc[CHAINS][ROWS][VECTORS] = {};
    for (int e = 0; e < head_size; e += CHAINS)
#pragma GCC unroll 4
      for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
          const vf k = load(keys + (e + c) * PANEL + v * LANES);
#pragma GCC unroll 4
          for (int r = 0; r < ROWS; r++) acc[c][r][v] += q[(size_t)r * q_stride + e + c] * k;
        }
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECTORS; v++) {
        vf sum = acc[0][r][v];
        for (int c = 1; c < CHAINS; c++) sum += acc[c][r][v];
        store(scratch + (size_t)r * padded + block + v * LANES, sum);
      }
  }
  for (int r = 0; r < ROWS; r++) softmax(scratch + (size_t)r * padded, s, padded);
  mix_head<ROWS>(scratch, padded, s, [&](int j) { return values + (size_t)j * v_stride; }, head_size, out, out_stride);
}

void attend(const float* q, int n, int q_stride, const float* transposed_keys, const float* values, int v_stride, int s,
            int head_size, float* out, int out_stride, float* scratch) {
  for (int i = 0; i < n;) {
    const int rows = n - i >= 4 ? 4 : 1;
    (rows == 4 ? attend_rows<4> : attend_rows<1>)(q + (size_t)i * q_stride, q_stride, transposed_keys, values, v_stride, s,
                                                  head_size, out + (size_t)i * out_stride, out_stride, scratch);
    i += rows;
  }
}

void attend_scattered(const float* q, const float* const* past, int n, int key_offset, int value_offset,
                      int head_size, float* out, float* scratch) {
  const int padded = (n + PANEL - 1) / PANEL * PANEL;
  for (int j = 0; j < n; j++) {
    const float* key = past[j] + key_offset;
    vf acc = splat(0.0f);
    for (int e = 0; e < head_size; e += LANES) acc += load(q + e) * load(key + e);
    scratch[j] = sum(acc);
  }
  softmax(scratch, n, padded);
  mix_head<1>(scratch, padded, n, [&](int j) { return past[j] + value_offset; }, head_size, out, 0);
}

// --- choice ----------------------------------------------------------------------------------------------------------

void exponential_sum(const float* logits, int n, float* most, float* total) {
  vf m = splat(-INF);
  for (int i = 0; i < n; i += LANES) m = max(m, load(logits + i));
  *most = largest(m);
  const float shift = *most > -INF ? *most : 0.0f;
  vf s = splat(0.0f), poison = splat(0.0f);
  for (int i = 0; i < n; i += LANES) {
    vf x = load(logits + i);
    s += exp(x - shift);
    poison += x == x ? vf{} : x;  // exp and max both lose a NaN
  }
  *total = sum(s + poison);
}

void top(const float* logits, int n, int32_t base, Candidate* best, int count) {
  for (int i = 0; i < n; i += LANES) {
    unsigned better = greater(load(logits + i), splat(best[count - 1].logit));
    for (; better; better &= better - 1) {
      const int at = i + __builtin_ctz(better);
      const float logit = logits[at];
      if (!(logit > best[count - 1].logit)) continue;
      int place = count - 1;
      for (; place > 0 && best[place - 1].logit < logit; place--) best[place] = best[place - 1];
      best[place] = {logit, base + at};
    }
  }
}

}  // namespace

extern const Kernels GF_JOIN(kernels_, GF_SET);
const Kernels GF_JOIN(kernels_, GF_SET) = {
    GF_STRING(GF_SET), prepare, product, layer_norm, add, embed, transpose_keys, attend, attend_scattered,
    exponential_sum,   top,     turn,    gate,       balance,
};

}  // namespace gf
