// Runs every kernel of one instruction set over numbers of its own, the same on every machine, and writes what came out
// as lines of "name value value …", for test_aarch64.py to compare.
//
//     kernel_driver SET
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"

namespace {

uint64_t state = 1;
float number() {  // in [−1, 1), exact in float32
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(int32_t)(state >> 40) / (1 << 23) - 1.0f;
}
std::vector<float> numbers(size_t n) {
  std::vector<float> all(n);
  for (float& each : all) each = number();
  return all;
}

template <class T>
void tell(const std::string& name, const T* values, size_t n) {
  std::printf("%s", name.c_str());
  for (size_t i = 0; i < n; i++) std::printf(" %.9g", (double)values[i]);
  std::printf("\n");
}

}  // namespace

int main(int, char** arguments) {
  using namespace gf;
  const Kernels* k = kernels(arguments[1]);
  if (!k) return std::printf("%s\n", kernel_sets()), 1;
  constexpr int N = 80, K = 96, ROWS = 11;
  alignas(64) static char weight[N * K * 4];
  const auto bias = numbers(N), x = numbers(ROWS * K), scale = numbers(N);
  for (int type : {FP32, BF16, INT8}) {
    std::vector<int32_t> sums(N, 0);
    const int group = type == INT8 ? 4 : type == BF16 ? 2 : 1;
    for (int n = 0; n < N; n++)
      for (int i = 0; i < K; i++) {
        const float value = number();
        const int at = ((n / 16 * (K / group) + i / group) * 16 + n % 16) * group + i % group;
        if (type == INT8) sums[n] += ((int8_t*)weight)[at] = (int8_t)(value * 127);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (type == BF16) ((uint16_t*)weight)[at] = (uint16_t)(bits >> 16);
        if (type == FP32) ((float*)weight)[at] = value;
      }
    const Linear linear{weight, scale.data(), bias.data(), sums.data(), nullptr, nullptr, N, K, type, 0};
    std::vector<char> inputs(ROWS * K * 4);
    std::vector<float> scales(ROWS), y(ROWS * N), row(K);
    const std::string of = std::to_string(type) + " ";
    for (int activation = NONE; activation <= SILU; activation++)
      for (int rows = 1; rows <= ROWS; rows++) {
        k->prepare(type, x.data(), rows, K, K, inputs.data(), scales.data());
        k->product(linear, inputs.data(), scales.data(), rows, 0, N / 16, y.data(), N, activation);
        tell("product" + of + std::to_string(activation), y.data(), (size_t)rows * N);
      }
    for (int id : {0, 17, N - 1}) {
      k->embed(linear, id, 1.5f, row.data());
      tell("embed" + of, row.data(), K);
    }
  }
  auto normed = numbers(K), keys = numbers(50 * K), q = numbers(5 * K), logits = numbers(N);
  std::fill(normed.begin() + 90, normed.end(), 0.0f);
  const auto gains = numbers(K), biases = numbers(K);
  k->layer_norm(normed.data(), 90, K, {gains.data(), biases.data(), 1e-5f, 0}, normed.data());
  tell("layer_norm", normed.data(), 90);
  k->add(normed.data(), q.data(), K);
  tell("add", normed.data(), 90);
  for (int s : {1, 15, 16, 50})
    for (int size : {16, 48}) {
      std::vector<float> transposed((s + 15) / 16 * 16 * size), out(5 * size), scratch(4 * 64);
      k->transpose_keys(keys.data(), s, K, size, transposed.data());
      tell("transpose_keys", transposed.data(), transposed.size());
      k->attend(q.data(), 5, K, transposed.data(), keys.data() + 48, K, s, size, out.data(), size, scratch.data());
      tell("attend", out.data(), out.size());
      std::vector<const float*> past;
      for (int j = 0; j < s; j++) past.push_back(keys.data() + (size_t)j * K);
      k->attend_scattered(q.data(), past.data(), s, 0, 48, size, out.data(), scratch.data());
      tell("attend_scattered", out.data(), size);
    }
  float most[2];
  k->exponential_sum(logits.data(), N, &most[0], &most[1]);
  tell("exponential_sum", most, 2);
  for (float& each : logits) each = (float)(int)(each * 8);  // ties
  std::vector<Candidate> best(9, Candidate{-1e9f, -1});
  k->top(logits.data(), N, 100, best.data(), 9);
  for (auto& each : best) tell("top " + std::to_string(each.id), &each.logit, 1);
}
