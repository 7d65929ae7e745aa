// The forward pass of a packed model, and what a decoding remembers between its steps.
#pragma once
#include <vector>

#include "abi.h"
#include "kernels.h"
#include "memory.h"
#include "team.h"

namespace gf {

inline int padded(int n) { return (n + PANEL - 1) / PANEL * PANEL; }

// A run of rows that belong together: the tokens of a sentence, or the hypotheses of one.
struct Run {
  int first, count, sentence;
};

// Buffers of one team for passes of at most `rows` rows over at most `keys` positions.
class Workspace {
 public:
  Workspace(const Model& model, const Kernels& kernels, int parts, int rows, int keys);

  struct Own {  // what one part of a shared loop uses
    float *scores, *transposed, *logits;
    Candidate* best;
  };

  const Model& model;
  const Kernels& kernels;
  std::vector<Own> own;
  float *x, *normed;                          // [rows][width]
  float *projected, *mixed, *hidden, *delta;  // what products write and attention reads
  float* held;                                // [rows][width] what a sub-layer leaves for the next to add
  float* angles;                              // [rows][turned] cosines, then sines
  float* balanced;                            // [rows][inputs] where any product has factors
  char* inputs;                               // what a product reads, by its type
  float* scales;                              // [rows]
  float *largest, *sums;                      // [chunks of the vocabulary][rows]
  float* wanted;                              // [rows]

  void reserve_choice(int rows, int candidates);  // room for choose()

 private:
  Arena arena_;
};

// The encoder's hidden states, [tokens][width].
void encode(Team& team, Workspace& space, const std::vector<Run>& runs, const int32_t* ids, float* out);

// Attention over the sources that a pass is to write down: of each sentence [wanted][tokens of its run][S].
struct Watch {
  const int32_t *layers, *heads;
  int wanted;
  std::vector<float*> out;  // [sentence]
};

// What one decoding remembers: cross-attention's keys and values of each sentence, and those of each token read. A row's
// past is a list of places, so that choosing among hypotheses copies no keys and no values.
class State {
 public:
  // `ids` and `lengths` are the encoder's sources; a decoder alone has only as many rows.
  State(const Model& model, const Kernels& kernels, const int32_t* ids, const int32_t* lengths, int sentences);

  void encode(Team& team, Workspace& space);  // before the first step

  int rows() const { return (int)sentence_.size(); }
  int longest_source() const { return longest_source_; }
  int source_tokens() const { return source_tokens_; }
  int longest_past() const {
    size_t longest = 0;
    for (auto& chain : past_) longest = chain.size() > longest ? chain.size() : longest;
    return (int)longest;
  }

  void select(const int32_t* index, int count);
  void truncate(int tokens);           // forgets each row's last
  void extend(const int32_t* counts);  // room for so many more tokens of each row; null: one each

  // Reads the tokens that there is room for, row by row; afterwards `space` holds the hidden states of each row's last,
  // or of all, normed and prepared for the output product.
  void step(Team& team, Workspace& space, const int32_t* tokens, bool last_only = true, const Watch* watch = nullptr);

  const Model& model;
  const Kernels& kernels;

 private:
  struct Cross {
    float *keys, *values;  // [heads][⌈S/16⌉][K][16], [S][heads · K]
  };
  struct Token {
    int row;
    int32_t position;
  };

  Arena arena_;
  const int32_t* ids_;
  std::vector<Run> sources_;
  std::vector<Cross> cross_;                // [layer][sentence]
  float* memory_ = nullptr;                 // [source tokens][width]
  std::vector<size_t> layer_offset_;        // of each layer's keys, then values, in a token's floats
  size_t floats_ = 0;                       // of a token
  std::vector<int32_t> sentence_;           // of each row
  std::vector<std::vector<float*>> past_;   // [row][position]
  std::vector<Token> tokens_;               // of the step, row by row
  std::vector<Run> runs_;                   // the step's tokens by sentence
  int source_tokens_ = 0, longest_source_ = 0;
};

// What the rows [first, first + rows) choose among: the outputs of a product, and the ids that they stand for.
struct Outputs {
  const Linear* linear;
  const int32_t* ids;  // sorted; null: 0, 1, …
  int size, first, rows;
};

// The rows `ids` of a packed matrix as one of their own.
Linear narrowed(const Linear& linear, const int32_t* ids, int count, Arena& arena);

// The output products over rows that are prepared in `space`: every row's Σ e^(logit − largest) in parts of its outputs,
// the logit of wanted_ids[row] (if ≥ 0), and of each part of the loop the `candidates` best of its share without `banned`
// (sorted) and without the row's own forbidden tokens.
void choose(Team& team, Workspace& space, const std::vector<Outputs>& outputs, const int32_t* wanted_ids, int candidates,
            const std::vector<int32_t>& banned, const std::vector<std::vector<int32_t>>& forbidden);
// log Σ e^logit of a row, after choose(). The same number whatever the team.
float log_sum(const Workspace& space, int row, int count);

// All logits [count][V padded].
void all_logits(Team& team, Workspace& space, int count, float* logits);

}  // namespace gf
