// The functions that Python calls. None lets an exception out: a null or a number says that one was caught, and
// gf_error what it was.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "model.h"
#include "search.h"

#define GF_EXPORT extern "C" __attribute__((visibility("default")))

using namespace gf;

namespace {

thread_local std::string message;

enum Failure : int32_t { FINE = 0, FAULT = 1, NAN_LOGITS = 2, NO_MEMORY = 3 };

template <class F>
int32_t guarded(F work) {
  prepare_to_throw();
  message.clear();
  try {
    work();
    return FINE;
  } catch (const NotANumber& e) {
    message = e.what();
    return NAN_LOGITS;
  } catch (const std::bad_alloc&) {
    message = "out of memory";
    return NO_MEMORY;
  } catch (const std::exception& e) {
    message = e.what();
    return FAULT;
  }
}

const Kernels& set_of(const char* name) {
  const Kernels* found = name && *name ? kernels(name) : &kernels();
  if (!found) throw std::runtime_error("no such kernels here: " + std::string(name));
  return *found;
}

struct Decoding {
  std::vector<int32_t> ids;  // the state reads them when it encodes
  State state;
  int threads;
};

}  // namespace

GF_EXPORT int32_t gf_abi_version() { return 6; }
GF_EXPORT const char* gf_error() { return message.c_str(); }
GF_EXPORT const char* gf_kernel_sets() { return kernel_sets(); }

GF_EXPORT int32_t gf_search(const Model* model, const char* set, const SearchRequest* request, SearchResult* result) {
  return guarded([&] {
    auto found = search(*model, set_of(set), *request);
    size_t hypotheses = 0, tokens = 0;
    for (auto& sentence : found) {
      hypotheses += sentence.size();
      for (auto& h : sentence) tokens += h.tokens.size();
    }
    // One block: counts, lengths, finished, tokens, logprobs.
    auto* block = (int32_t*)std::malloc((found.size() + 2 * hypotheses + 2 * tokens + 1) * 4);
    if (!block) throw std::bad_alloc();
    *result = {block, block + found.size(), block + found.size() + hypotheses, block + found.size() + 2 * hypotheses,
               (float*)(block + found.size() + 2 * hypotheses + tokens)};
    size_t at = 0, h_at = 0;
    for (size_t s = 0; s < found.size(); s++) {
      result->counts[s] = (int32_t)found[s].size();
      for (auto& h : found[s]) {
        result->lengths[h_at] = (int32_t)h.tokens.size();
        result->finished[h_at++] = h.finished;
        std::copy(h.tokens.begin(), h.tokens.end(), result->tokens + at);
        std::copy(h.logprobs.begin(), h.logprobs.end(), result->logprobs + at);
        at += h.tokens.size();
      }
    }
  });
}

GF_EXPORT void gf_free_result(SearchResult* result) {
  std::free(result->counts);
  result->counts = nullptr;
}

GF_EXPORT int32_t gf_start(const Model* model, const char* set, const int32_t* sources, const int32_t* lengths,
                           int32_t sentences, int32_t threads, void** decoding) {
  return guarded([&] {
    size_t total = 0;
    for (int s = 0; s < sentences; s++) total += lengths[s];
    std::vector<int32_t> ids(sources, sources + total);
    const Kernels& k = set_of(set);
    const int32_t* stable = ids.data();  // moving a vector keeps its elements where they are
    std::unique_ptr<Decoding> d(
        new Decoding{std::move(ids), State(*model, k, stable, lengths, sentences), threads});
    if (d->state.source_tokens()) {
      Workspace space(*model, k, threads, d->state.source_tokens(), d->state.longest_source());
      Team team(threads);
      d->state.encode(team, space);
    }
    *decoding = d.release();
  });
}

// Reads counts[row] tokens of each row, row by row (null: one of each); logits [rows][V padded to 16] of what follows
// each row's last, or of all tokens.
GF_EXPORT int32_t gf_step(void* decoding, const int32_t* tokens, const int32_t* counts, int32_t last_only,
                          float* logits) {
  auto* d = static_cast<Decoding*>(decoding);
  return guarded([&] {
    State& state = d->state;
    int total = state.rows(), most = 1;
    if (counts) {
      total = 0;
      for (int r = 0; r < state.rows(); r++) {
        total += counts[r];
        most = std::max(most, counts[r]);
      }
    }
    Workspace space(state.model, state.kernels, d->threads, total,
                    std::max(state.longest_source(), state.longest_past() + most));
    Team team(d->threads);
    state.extend(counts);  // once nothing can fail any more
    state.step(team, space, tokens, last_only);
    all_logits(team, space, last_only ? state.rows() : total, logits);
  });
}

// The hidden states of an encoder alone, [tokens][width].
GF_EXPORT int32_t gf_encode(const Model* model, const char* set, const int32_t* ids, const int32_t* lengths,
                            int32_t sentences, int32_t threads, float* hidden) {
  return guarded([&] {
    std::vector<Run> runs;
    int total = 0, longest = 0;
    for (int s = 0; s < sentences; total += lengths[s++]) {
      runs.push_back({total, lengths[s], s});
      longest = std::max(longest, lengths[s]);
    }
    Workspace space(*model, set_of(set), threads, total, longest);
    Team team(threads);
    encode(team, space, runs, ids, hidden);
  });
}

// The decoder's attention over each source, by teacher forcing: of each sentence [wanted][target][source], concatenated.
GF_EXPORT int32_t gf_attention(const Model* model, const char* set, const AttentionRequest* request, float* weights) {
  return guarded([&] {
    const auto& r = *request;
    State state(*model, set_of(set), r.sources, r.source_lengths, r.sentences);
    Watch watch{r.layers, r.heads, r.wanted, {}};
    int targets = 0, longest = state.longest_source();
    for (int s = 0; s < r.sentences; s++) {
      watch.out.push_back(weights);
      weights += (size_t)r.wanted * r.target_lengths[s] * r.source_lengths[s];
      targets += r.target_lengths[s];
      longest = std::max(longest, r.target_lengths[s]);
    }
    Workspace space(*model, state.kernels, r.threads, std::max(state.source_tokens(), targets), longest);
    Team team(r.threads);
    if (state.source_tokens()) state.encode(team, space);
    if (!targets) return;
    state.extend(r.target_lengths);
    state.step(team, space, r.targets, false, &watch);
  });
}

GF_EXPORT int32_t gf_select(void* decoding, const int32_t* index, int32_t count) {
  return guarded([&] { static_cast<Decoding*>(decoding)->state.select(index, count); });
}

GF_EXPORT int32_t gf_truncate(void* decoding, int32_t tokens) {
  return guarded([&] { static_cast<Decoding*>(decoding)->state.truncate(tokens); });
}

GF_EXPORT void gf_free(void* decoding) { delete static_cast<Decoding*>(decoding); }

// For the tests: the table of one set of kernels.
GF_EXPORT const Kernels* gf_kernels(const char* set) { return kernels(set); }
