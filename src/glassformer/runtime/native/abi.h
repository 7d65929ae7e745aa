// The C ABI that Python (engine.py) mirrors with ctypes: plain structs over memory that the caller keeps alive.
//
// Shapes, everywhere in this folder: D model, H heads, K head size, F feed-forward, V vocabulary, S source, T target.
// Every inner size is padded to a multiple of 16 with zeros when a model is packed (pack.py), so no kernel has a tail.
#pragma once
#include <cstdint>

namespace gf {

constexpr int PANEL = 16;  // output rows that lie side by side in a packed matrix

enum Type : int32_t { FP32 = 0, BF16 = 1, INT8 = 2 };
enum Activation : int32_t { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4 };

// y = x Wᵀ + b. The weight is [n / 16][k / G][16][G] with G = 1, 2, 4 elements to a 32-bit group for FP32, BF16, INT8:
// one aligned load gives a group of 16 output rows, on every instruction set.
struct Linear {
  const void* weight;
  const float* scale;       // INT8: [n] of each output row
  const float* bias;        // [n]
  const int32_t* row_sums;  // INT8: [n] sum of each quantised row
  // Balanced inputs: each is multiplied by its factor, and `extras` of them come again behind the others; null: as they are.
  float* factors;          // [k]; where extras is −1, what takes down the largest magnitude of each input
  const int32_t* columns;  // [extras] which come again
  int32_t n, k, type, extras;
};

inline int inputs_of(const Linear& l) { return l.extras > 0 ? l.k - l.extras : l.k; }

struct Norm {
  const float* gain;  // [D]; null: no norm
  const float* bias;  // [D]
  float eps;
  int32_t rms;  // 1: root mean square, nothing is centred
};

struct Layer {
  Norm mixer_norm, cross_norm, ffn_norm;
  Linear qkv, out;                      // qkv: queries (already scaled), keys, values
  Linear cross_q, cross_kv, cross_out;  // weight null: no cross-attention
  Linear up, down;                      // weight null: no feed-forward part; gated: up holds the gate, then the values
  int32_t heads, kv_heads, head_size;
  int32_t cross_heads, cross_head_size;
  int32_t window;  // keys that are seen, the own one counted; 0: all
  int32_t activation, gated, pre, parallel;
};

struct Stack {
  const Layer* layers;
  const float* positions;     // [max_len][D padded]; null: none
  const double* frequencies;  // [turned / 2] angles a position; null: queries and keys are not turned
  Norm input_norm, final_norm;
  float sharpness;  // what turned queries and keys are multiplied by
  int32_t turned;   // features of a head that turn: i with i + turned / 2
  int32_t n_layers, max_len;
};

// An encoder–decoder has layers in both stacks; one of them is empty otherwise.
struct Model {
  Stack encoder, decoder;
  Linear source_embed, target_embed, output;  // embeddings are looked up in packed matrices, so a tied one is stored once
  float source_factor, target_factor;
  int32_t d, width;  // D, and D padded
  int32_t source_vocab, target_vocab;
};

struct SearchRequest {
  const int32_t* sources;         // concatenated; a decoder's prompts
  const int32_t* source_lengths;  // [sentences]
  const int32_t* prefixes;        // concatenated
  const int32_t* prefix_lengths;  // [sentences]
  const int32_t* limits;          // [sentences] longest target, prefix and </s> included
  const int32_t* banned;          // tokens
  const int32_t* phrases;         // banned sequences of tokens, concatenated
  const int32_t* phrase_lengths;  // [n_phrases]
  const int32_t* shortlists;        // sorted ids that a sentence's targets are made of, concatenated
  const int32_t* shortlist_lengths;  // [sentences]; 0: the whole vocabulary
  int32_t sentences, n_banned, n_phrases, no_repeat_ngram;  // 0: n-grams may repeat
  int32_t beam_size, n_best;
  int32_t bos, eos;
  int32_t threads, workers;  // threads in all; workers: groups of sentences decoded side by side, 0 chooses
  double length_penalty;
};

// Pairs of a source and a target, and which of the decoder's attention over sources is wanted of each.
struct AttentionRequest {
  const int32_t* sources;         // concatenated
  const int32_t* source_lengths;  // [sentences]
  const int32_t* targets;         // concatenated, as the decoder reads them
  const int32_t* target_lengths;  // [sentences]
  const int32_t* layers;          // [wanted]
  const int32_t* heads;           // [wanted] one of that layer's
  int32_t sentences, wanted, threads;
};

// Hypotheses of all sentences, best first, concatenated; freed by gf_free_result.
struct SearchResult {
  int32_t* counts;    // [sentences]
  int32_t* lengths;   // [hypotheses] log-probabilities of each, </s> included
  int32_t* finished;  // [hypotheses]
  int32_t* tokens;    // concatenated, </s> included where finished
  float* logprobs;    // concatenated
};

}  // namespace gf
