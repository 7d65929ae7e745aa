// Greedy and beam search over a packed model.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "abi.h"
#include "kernels.h"

namespace gf {

struct NotANumber : std::runtime_error {
  explicit NotANumber(int position)
      : std::runtime_error("the model gave NaN logits at target position " + std::to_string(position)) {}
};

struct Hypothesis {
  std::vector<int32_t> tokens;  // </s> included where finished
  std::vector<float> logprobs;
  double score;
  bool finished;
};

// The hypotheses of each sentence, best first; the rules are those of glassformer.generate.search.
std::vector<std::vector<Hypothesis>> search(const Model& model, const Kernels& kernels, const SearchRequest& request);

}  // namespace gf
