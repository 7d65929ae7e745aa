// What is compiled once for each instruction set: a table of functions. Everything else in this folder is plain C++.
#pragma once
#include "abi.h"

namespace gf {

struct Candidate {
  float logit;
  int32_t id;
};

struct Kernels {
  const char* name;

  // Rows x [rows][k] float32, `stride` apart, as the inputs of a product with weights of `type`, [rows][k] elements;
  // `scales` [rows] for INT8 (symmetric, one scale a row).
  void (*prepare)(int32_t type, const float* x, int rows, int stride, int k, void* inputs, float* scales);

  // y[r][16 p …] for panels p in [first, last): activation(x Wᵀ + b). Each output is summed in one order whatever the
  // number of rows, so that a row's result never depends on the others.
  void (*product)(const Linear& linear, const void* inputs, const float* scales, int rows, int first, int last, float* y,
                  int stride, int32_t activation);

  // out = γ (x − mean) / √(variance + ε) + β over d of `width` features, or γ x / √(mean of squares + ε); out may be x.
  void (*layer_norm)(const float* x, int d, int width, const Norm& norm, float* out);

  void (*add)(float* x, const float* y, int n);

  // The row `id` of a packed matrix times `factor`.
  void (*embed)(const Linear& table, int32_t id, float factor, float* out);

  // keys [s][stride] to [⌈s/16⌉][head_size][16], the tail zero.
  void (*transpose_keys)(const float* keys, int s, int stride, int head_size, float* transposed);

  // One head of n queries over s keys, all of which they see: softmax(q Kᵀ) V. scratch: 4 · (s rounded up to 16) floats.
  void (*attend)(const float* q, int n, int q_stride, const float* transposed_keys, const float* values, int v_stride,
                 int s, int head_size, float* out, int out_stride, float* scratch);

  // One head of one query over n positions that lie anywhere, each with its key and its value at these offsets;
  // scratch: n rounded up to 16 floats.
  void (*attend_scattered)(const float* q, const float* const* past, int n, int key_offset, int value_offset,
                           int head_size, float* out, float* scratch);

  // Largest of n logits (n a multiple of 16), and Σ e^(logit − largest). NaN makes the sum NaN.
  void (*exponential_sum)(const float* logits, int n, float* largest, float* sum);

  // Merges n logits (ids from `base`) into the `count` best so far of `best`, sorted; ties go to the lower id.
  void (*top)(const float* logits, int n, int32_t base, Candidate* best, int count);

  // Pairs (i, i + half) of x turned by an angle: (a, b) to (a cos − b sin, b cos + a sin).
  void (*turn)(float* x, const float* cosines, const float* sines, int half);

  // x[i] = activation(x[i]) · x[n + i].
  void (*gate)(float* x, int n, int32_t activation);

  // out[i] = x[i] · factor[i] for n inputs, then those of `columns`, `extras` of them, by the factors that follow.
  void (*balance)(const float* x, int n, const float* factors, const int32_t* columns, int extras, float* out);
};

const Kernels& kernels();                 // the best set that this processor has
const Kernels* kernels(const char* set);  // by name; null: not built in, or not on this processor
const char* kernel_sets();                // the names of those that run here, best first, separated by blanks

}  // namespace gf
