#include "search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "model.h"

namespace gf {
namespace {

// Rows of a group at first: about where a step costs least a row (docs/log.md).
constexpr int GROUP_ROWS = 96;
constexpr double NEVER = -std::numeric_limits<double>::infinity();

double length_penalty(int length, double alpha) { return std::pow((5.0 + length) / 6.0, alpha); }

// Tokens chosen so far, as chains that share their beginnings.
struct Node {
  int parent;  // −1: the beginning
  int32_t token;
  float logprob;
};

struct Growing {
  int node;
  double sum;
};

struct Unit {
  int sentence, limit;
  const int32_t* prefix;
  int prefix_length;
  const int32_t* shortlist_ids;
  int shortlist_size;
  Linear shortlist;  // weight null: the whole vocabulary
  std::vector<Growing> growing;
  std::vector<Hypothesis> done;
};

struct Choice {
  double sum;
  int parent;  // among the unit's growing
  int32_t token;
  float logprob;
};

// One team's search over some of a request's sentences.
class Search {
 public:
  Search(const Model& model, const Kernels& kernels, const SearchRequest& request, const std::vector<int>& sentences,
         const std::vector<const int32_t*>& sources, const std::vector<const int32_t*>& prefixes,
         const std::vector<const int32_t*>& shortlists)
      : model_(model), request_(request), banned_(request.banned, request.banned + request.n_banned) {
    std::sort(banned_.begin(), banned_.end());
    const bool prompted = !model.encoder.n_layers;
    int count = 0;
    for (int s : sentences) {
      const int32_t length = request.source_lengths[s];
      ids_.insert(ids_.end(), sources[s], sources[s] + length);
      lengths_.push_back(length);
      const int size = request.shortlist_lengths[s];
      Linear shortlist{};
      if (size) shortlist = narrowed(model.output, shortlists[s], size, arena_);
      units_.push_back({s, request.limits[s], prefixes[s], request.prefix_lengths[s], shortlists[s], size, shortlist,
                        {{-1, 0.0}}, {}});
      longest_ = std::max({longest_, length, request.limits[s] + (prompted ? length : 0)});
      live_.push_back(count++);
    }
    state_ = std::make_unique<State>(model, kernels, ids_.data(), lengths_.data(), count);
    rows_ = std::max(count * request.beam_size, 1);
    if (prompted) {  // the first step reads the prompts
      tokens_ = ids_;
      counts_ = lengths_;
    } else {
      tokens_.assign(count, request.bos);
      counts_.assign(count, 1);
    }
  }

  void run(int threads) {
    Team team(threads);
    // The encoder and a prompt have more rows than a step does, and only a step needs room for its choice.
    if (state_->source_tokens()) {
      Workspace space(state_->model, state_->kernels, threads, state_->source_tokens(), state_->longest_source());
      state_->encode(team, space);
    }
    Workspace space(state_->model, state_->kernels, threads, std::max(rows_, (int)tokens_.size()), longest_);
    space.reserve_choice(rows_, request_.beam_size);
    while (!live_.empty()) {
      begin_step();
      state_->step(team, space, tokens_.data());
      choose(team, space, outputs_, wanted_.data(), candidates_, banned_, forbidden_);
      advance(space);
    }
  }

  std::vector<Unit>& units() { return units_; }

 private:
  void begin_step() {
    state_->extend(counts_.empty() ? nullptr : counts_.data());
    counts_.clear();
    length_++;
    candidates_ = 0;
    size_t row = 0;
    wanted_.resize(state_->rows());
    forbidden_.assign(state_->rows(), {});
    outputs_.clear();
    for (int u : live_) {
      const Unit& unit = units_[u];
      const int rows = (int)unit.growing.size();
      if (unit.shortlist.weight)
        outputs_.push_back({&unit.shortlist, unit.shortlist_ids, unit.shortlist_size, (int)row, rows});
      else if (outputs_.empty() || outputs_.back().ids)
        outputs_.push_back({&model_.output, nullptr, model_.target_vocab, (int)row, rows});
      else
        outputs_.back().rows += rows;
      const int32_t forced = length_ <= unit.prefix_length ? unit.prefix[length_ - 1] : -1;
      for (const Growing& each : unit.growing) {
        if (steers()) forbid(each.node, forbidden_[row]);
        wanted_[row++] = forced;
      }
      candidates_ = std::max(candidates_, slots(unit));
    }
  }

  bool steers() const { return request_.n_phrases > 0 || request_.no_repeat_ngram > 0; }

  // The tokens that would complete a banned phrase, or an n-gram that the hypothesis holds already.
  void forbid(int node, std::vector<int32_t>& forbidden) const {
    std::vector<int32_t> past;
    for (; node >= 0; node = nodes_[node].parent) past.push_back(nodes_[node].token);
    std::reverse(past.begin(), past.end());
    const int length = (int)past.size();
    auto ends_with = [&](const int32_t* tokens, int count) {
      return count <= length && std::equal(tokens, tokens + count, past.end() - count);
    };
    const int32_t* phrase = request_.phrases;
    for (int p = 0; p < request_.n_phrases; phrase += request_.phrase_lengths[p++])
      if (const int before = request_.phrase_lengths[p] - 1; ends_with(phrase, before)) forbidden.push_back(phrase[before]);
    const int before = request_.no_repeat_ngram - 1;
    for (int i = 0; before >= 0 && i + before < length; i++)
      if (ends_with(&past[i], before)) forbidden.push_back(past[i + before]);
  }

  int slots(const Unit& unit) const { return request_.beam_size - (int)unit.done.size(); }

  void advance(const Workspace& space) {
    std::vector<int> still_live;
    std::vector<int32_t> tokens, parents;
    const int count = state_->rows();
    int row = 0;
    for (int u : live_) {
      Unit& unit = units_[u];
      const int first = row;
      row += (int)unit.growing.size();
      std::vector<Choice> choices = survivors(space, unit, first, count);
      if (choices.empty() && unit.done.empty())  // nothing is allowed any more: what stands is all there is
        for (const Growing& each : unit.growing) finish(unit, each.node, false);
      std::vector<Growing> grown;
      std::vector<int32_t> grown_tokens, grown_parents;
      double best = NEVER;
      for (const Choice& c : choices) {
        nodes_.push_back({unit.growing[c.parent].node, c.token, c.logprob});
        const int node = (int)nodes_.size() - 1;
        if (c.token == request_.eos || length_ >= unit.limit) {
          finish(unit, node, c.token == request_.eos);
          continue;
        }
        grown.push_back({node, c.sum});
        grown_tokens.push_back(c.token);
        grown_parents.push_back(first + c.parent);
        best = std::max(best, c.sum);
      }
      unit.growing.swap(grown);
      if (settled(unit, best)) continue;
      still_live.push_back(u);
      tokens.insert(tokens.end(), grown_tokens.begin(), grown_tokens.end());
      parents.insert(parents.end(), grown_parents.begin(), grown_parents.end());
    }
    live_.swap(still_live);
    tokens_.swap(tokens);
    if (!live_.empty()) state_->select(parents.data(), (int)parents.size());
  }

  // The best continuations of a unit, at most as many as it has slots, best first.
  std::vector<Choice> survivors(const Workspace& space, const Unit& unit, int first, int count) const {
    std::vector<Choice> found;
    for (int i = 0; i < (int)unit.growing.size(); i++) {
      const int row = first + i;
      const float normaliser = log_sum(space, row, count);
      if (std::isnan(normaliser)) throw NotANumber(length_);
      auto consider = [&](int32_t token, float logit) {
        const float logprob = logit - normaliser;
        if (std::isfinite(logprob)) found.push_back({unit.growing[i].sum + logprob, i, token, logprob});
      };
      if (wanted_[row] >= 0) {
        consider(wanted_[row], space.wanted[row]);
        continue;
      }
      for (const auto& own : space.own) {
        const Candidate* best = own.best + (size_t)row * candidates_;
        for (int c = 0; c < candidates_ && best[c].id >= 0; c++) consider(best[c].id, best[c].logit);
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const Choice& a, const Choice& b) { return a.sum > b.sum; });
    if ((int)found.size() > slots(unit)) found.resize(slots(unit));
    return found;
  }

  void finish(Unit& unit, int node, bool finished) {
    Hypothesis h{{}, {}, 0.0, finished};
    for (int n = node; n >= 0; n = nodes_[n].parent) {
      h.tokens.push_back(nodes_[n].token);
      h.logprobs.push_back(nodes_[n].logprob);
    }
    std::reverse(h.tokens.begin(), h.tokens.end());
    std::reverse(h.logprobs.begin(), h.logprobs.end());
    for (float logprob : h.logprobs) h.score += logprob;
    h.score /= length_penalty((int)h.logprobs.size(), request_.length_penalty);
    unit.done.push_back(std::move(h));
  }

  // Whether no descendant of the best growing hypothesis can enter the n-best: log-probabilities are at most 0, so a sum
  // only falls, and dividing by the penalty of the longest target is the kindest that can happen to it.
  bool settled(const Unit& unit, double best_sum) const {
    if (best_sum == NEVER) return true;
    if ((int)unit.done.size() < request_.n_best) return false;
    std::vector<double> scores;
    for (const Hypothesis& h : unit.done) scores.push_back(h.score);
    std::nth_element(scores.begin(), scores.begin() + (request_.n_best - 1), scores.end(), std::greater<>());
    return best_sum / length_penalty(unit.limit, request_.length_penalty) <= scores[request_.n_best - 1];
  }

  const Model& model_;
  const SearchRequest& request_;
  Arena arena_;
  std::vector<Outputs> outputs_;
  std::vector<int32_t> banned_, ids_, lengths_;
  std::vector<std::vector<int32_t>> forbidden_;  // of each row
  std::vector<Unit> units_;
  std::vector<int> live_;
  std::vector<Node> nodes_;
  std::unique_ptr<State> state_;
  std::vector<int32_t> tokens_, wanted_;
  std::vector<int32_t> counts_;  // tokens of each row in the next step; empty: one each
  int rows_ = 0, longest_ = 1, length_ = 0, candidates_ = 0;
};

std::vector<const int32_t*> starts(const int32_t* ids, const int32_t* lengths, int count) {
  std::vector<const int32_t*> all;
  for (int i = 0; i < count; ids += lengths[i++]) all.push_back(ids);
  return all;
}

}  // namespace

std::vector<std::vector<Hypothesis>> search(const Model& model, const Kernels& kernels, const SearchRequest& request) {
  std::vector<std::vector<Hypothesis>> found(request.sentences);
  if (request.sentences == 0) return found;
  const auto sources = starts(request.sources, request.source_lengths, request.sentences);
  const auto prefixes = starts(request.prefixes, request.prefix_lengths, request.sentences);
  const auto shortlists = starts(request.shortlists, request.shortlist_lengths, request.sentences);
  const int threads = std::max(request.threads, 1);
  const int workers = std::min({request.workers > 0 ? request.workers : threads, threads, request.sentences});
  // Neighbours are of like length as a rule, so they go together, and whoever is done with a group takes the next one.
  const int size = std::max(1, GROUP_ROWS / request.beam_size);
  const int groups = std::min(request.sentences, std::max(workers, (request.sentences + size - 1) / size));
  side_by_side(groups, workers, [&](int group) {
    std::vector<int> sentences;
    const int64_t all = request.sentences;
    for (int s = (int)(all * group / groups); s < (int)(all * (group + 1) / groups); s++) sentences.push_back(s);
    Search one(model, kernels, request, sentences, sources, prefixes, shortlists);
    one.run(threads / workers);
    for (Unit& unit : one.units()) {
      auto& done = unit.done;
      std::stable_sort(done.begin(), done.end(),
                       [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
      if ((int)done.size() > request.n_best) done.resize(request.n_best);
      found[unit.sentence] = std::move(done);
    }
  });
  return found;
}

}  // namespace gf
