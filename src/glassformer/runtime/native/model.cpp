#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gf {
namespace {

constexpr int CHUNK = 512;  // logits that are looked at while they are in the cache

template <class F>
void each_stack_size(const Model& m, F f) {
  for (const Stack* stack : {&m.encoder, &m.decoder})
    for (int i = 0; i < stack->n_layers; i++) f(stack->layers[i]);
}

struct Widths {
  int input = 0, projected = 0, mixed = 0, hidden = 0, head = 0;
};

Widths widths(const Model& m) {
  Widths w;
  w.input = w.projected = m.width;
  each_stack_size(m, [&](const Layer& l) {
    w.projected = std::max({w.projected, l.qkv.n, l.cross_q.n, l.cross_kv.n});
    w.mixed = std::max({w.mixed, l.out.k, l.cross_out.k});
    w.hidden = std::max(w.hidden, l.up.n);
    w.head = std::max({w.head, l.head_size, l.cross_head_size});
    w.input = std::max({w.input, l.out.k, l.cross_out.k, l.down.k});
  });
  return w;
}

constexpr int FEW = 4;
bool have_own_rows(const Team& team, int count) { return count <= FEW && team.size > 1; }

// A part of the panels of a product, in whole tiles.
std::pair<int, int> panel_share(const Team& team, int n) {
  const int panels = n / PANEL, group = 4;
  auto [first, last] = team.share((panels + group - 1) / group);
  return {std::min(first * group, panels), std::min(last * group, panels)};
}

// One pass of a team over some rows.
class Pass {
 public:
  Pass(const Team& team, Workspace& space, int count)
      : team_(team),
        space_(space),
        k_(space.kernels),
        count_(count),
        private_(have_own_rows(team, count)),
        buffers_(private_ ? space.own[team.id].few : space.rows),
        share_(private_ ? std::pair<int, int>(0, count) : team.share(count)) {}

  float* x(int row) { return buffers_.x + (size_t)row * space_.model.width; }
  std::pair<int, int> share() const { return share_; }

  // Row i of a run stands at position `start` + i · `apart`.
  void embed(const Linear& table, float factor, const Stack& stack, const int32_t* tokens, const std::vector<Run>& runs,
             int start, int apart = 1) {
    const int width = space_.model.width;
    for (const Run& run : runs)
      for (int r = std::max(run.first, share_.first); r < std::min(run.first + run.count, share_.second); r++) {
        k_.embed(table, tokens[r], factor, x(r));
        const size_t position = start + (r - run.first) * apart;
        if (stack.positions) k_.add(x(r), stack.positions + position * width, width);
      }
  }

  // x ← x + last(middle(first(norm(x)))), or with the norm behind the sum.
  template <class Middle>
  void sublayer(bool pre, const Norm& norm, const Linear& first, float* first_out, int32_t activation, Middle middle,
                const Linear& last, const float* last_in) {
    prepare_rows(pre ? &norm : nullptr, first.type);
    product(first, first_out, activation);
    middle();
    prepare(last, last_in, last.k);
    product(last, space_.delta, NONE);
    const int width = space_.model.width;
    for (int r = share_.first; r < share_.second; r++) {
      k_.add(x(r), space_.delta + (size_t)r * width, width);
      if (!pre) k_.layer_norm(x(r), space_.model.d, width, norm, x(r));
    }
  }

  // The rows, normed or not, as inputs of products with weights of `type`.
  void prepare_rows(const Norm* norm, int32_t type) {
    const int width = space_.model.width;
    const float* from = buffers_.x;
    if (norm && norm->gain) {
      for (int r = share_.first; r < share_.second; r++)
        k_.layer_norm(x(r), space_.model.d, width, *norm, buffers_.normed + (size_t)r * width);
      from = buffers_.normed;
    }
    prepare_from(from, type, width);
  }

  void prepare(const Linear& linear, const float* from, int stride) { prepare_from(from, linear.type, stride); }

  void product(const Linear& linear, float* out, int32_t activation) {
    auto [first, last] = panel_share(team_, linear.n);
    k_.product(linear, buffers_.inputs, buffers_.scales, count_, first, last, out, linear.n, activation);
    team_.wait();
  }

  // Runs item(i) for this thread's share of n items, then waits for the others.
  template <class Item>
  void items(int n, Item item) {
    auto [first, last] = team_.share(n);
    for (int i = first; i < last; i++) item(i);
    team_.wait();
  }

 private:
  void prepare_from(const float* from, int32_t type, int k) {
    const size_t size = type == INT8 ? 1 : type == BF16 ? 2 : 4;
    const int first = share_.first, rows = share_.second - first;
    char* inputs = (char*)buffers_.inputs + (size_t)first * k * size;
    if (rows > 0) k_.prepare(type, from + (size_t)first * k, rows, k, k, inputs, buffers_.scales + first);
    if (!private_) team_.wait();
  }

  const Team& team_;
  Workspace& space_;
  const Kernels& k_;
  const int count_;
  const bool private_;
  const Workspace::RowBuffers& buffers_;
  const std::pair<int, int> share_;
};

// Attention among the rows of each run.
void attend_within(Pass& pass, Workspace& space, Workspace::Own& own, const Layer& l, const std::vector<Run>& runs) {
  const int heads = l.heads, size = l.head_size, inner = heads * size, stride = 3 * inner;
  pass.items((int)runs.size() * heads, [&](int item) {
    const Run& run = runs[item / heads];
    const int at = item % heads * size;
    const float* q = space.projected + (size_t)run.first * stride + at;
    space.kernels.transpose_keys(q + inner, run.count, stride, size, own.transposed);
    space.kernels.attend(q, run.count, stride, own.transposed, q + 2 * inner, stride, run.count, size,
                         space.mixed + (size_t)run.first * inner + at, inner, own.scores);
  });
}

}  // namespace

Workspace::Workspace(const Model& m, const Kernels& k, int team, int count, int keys) : model(m), kernels(k), own(team) {
  const Widths w = widths(m);
  rows = row_buffers(count);
  projected = arena_.take<float>((size_t)count * w.projected);
  mixed = arena_.take<float>((size_t)count * w.mixed);
  hidden = arena_.take<float>((size_t)count * w.hidden);
  delta = arena_.take<float>((size_t)count * m.width);
  for (Own& each : own) {
    each.few = row_buffers(FEW);
    each.scores = arena_.take<float>(4 * (size_t)padded(keys));
    each.transposed = arena_.take<float>((size_t)padded(keys) * w.head);
    each.past = arena_.take<const float*>(keys);
    each.logits = nullptr;
    each.best = nullptr;
  }
}

Workspace::RowBuffers Workspace::row_buffers(int count) {
  const size_t inputs = (size_t)count * widths(model).input;
  RowBuffers b;
  b.x = arena_.take<float>((size_t)count * model.width);
  b.normed = arena_.take<float>((size_t)count * model.width);
  b.scales = arena_.take<float>(count);
  b.inputs = arena_.take<float>(inputs);
  return b;
}

void Workspace::reserve_choice(int count, int candidates) {
  const int chunks = (model.output.n + CHUNK - 1) / CHUNK;
  largest = arena_.take<float>((size_t)chunks * count);
  sums = arena_.take<float>((size_t)chunks * count);
  wanted = arena_.take<float>(count);
  for (Own& each : own) {
    each.logits = arena_.take<float>((size_t)count * CHUNK);
    each.best = arena_.take<Candidate>((size_t)count * candidates);
  }
}

void encode_rows(const Team& team, Workspace& space, const Stack& stack, const std::vector<Run>& runs,
                 const int32_t* ids, float* out) {
  const Model& m = space.model;
  const int count = runs.empty() ? 0 : runs.back().first + runs.back().count;
  Pass pass(team, space, count);
  auto& own = space.own[team.id];
  pass.embed(m.source_embed, m.source_factor, stack, ids, runs, 0);
  for (int i = 0; i < stack.n_layers; i++) {
    const Layer& l = stack.layers[i];
    pass.sublayer(l.pre, l.mixer_norm, l.qkv, space.projected, NONE,
                  [&] { attend_within(pass, space, own, l, runs); }, l.out, space.mixed);
    if (l.up.weight)
      pass.sublayer(l.pre, l.ffn_norm, l.up, space.hidden, l.activation, [] {}, l.down, space.hidden);
  }
  auto [first, last] = team.share(count);
  for (int r = first; r < last; r++) {
    float* to = out + (size_t)r * m.width;
    if (stack.final_norm.gain)
      space.kernels.layer_norm(pass.x(r), m.d, m.width, stack.final_norm, to);
    else
      std::memcpy(to, pass.x(r), (size_t)m.width * 4);
  }
  team.wait();
}

State::State(const Model& m, const Kernels& k, const int32_t* ids, const int32_t* lengths, int sentences)
    : model(m), kernels(k), ids_(ids) {
  for (int s = 0; s < sentences; s++) {
    sources_.push_back({source_tokens_, lengths[s], s});
    source_tokens_ += lengths[s];
    longest_source_ = std::max(longest_source_, lengths[s]);
    sentence_.push_back(s);
    runs_.push_back({s, 1, s});
  }
  ancestors_.resize(sentences);
  memory_ = arena_.take<float>((size_t)source_tokens_ * m.width);
  cross_.resize((size_t)m.decoder.n_layers * sentences);
  size_t offset = 0;
  for (int i = 0; i < m.decoder.n_layers; i++) {
    const Layer& l = m.decoder.layers[i];
    const int inner = l.cross_heads * l.cross_head_size;
    for (int s = 0; l.cross_q.weight && s < sentences; s++)
      cross_[(size_t)i * sentences + s] = {arena_.take<float>((size_t)inner * padded(lengths[s])),
                                           arena_.take<float>((size_t)inner * lengths[s])};
    layer_offset_.push_back(offset);
    offset += 2 * (size_t)l.heads * l.head_size;
  }
  layer_offset_.push_back(offset);
}

void State::encode(const Team& team, Workspace& space) {
  encode_rows(team, space, model.encoder, sources_, ids_, memory_);
  // The encoder's output, prepared once, gives every decoder layer's keys and values.
  Pass pass(team, space, source_tokens_);
  for (int r = pass.share().first; r < pass.share().second; r++)
    std::memcpy(pass.x(r), memory(r), (size_t)model.width * 4);
  for (int i = 0; i < model.decoder.n_layers; i++) {
    const Layer& l = model.decoder.layers[i];
    if (!l.cross_q.weight) continue;
    if (i == 0 || model.decoder.layers[i - 1].cross_kv.type != l.cross_kv.type)
      pass.prepare_rows(nullptr, l.cross_kv.type);
    pass.product(l.cross_kv, space.projected, NONE);
    const int size = l.cross_head_size, inner = l.cross_heads * size;
    pass.items((int)sources_.size() * l.cross_heads, [&](int item) {
      const Run& source = sources_[item / l.cross_heads];
      const int at = item % l.cross_heads * size;
      const Cross& cross = cross_[(size_t)i * sources_.size() + source.sentence];
      const float* keys = space.projected + (size_t)source.first * 2 * inner + at;
      kernels.transpose_keys(keys, source.count, 2 * inner, size, cross.keys + (size_t)at * padded(source.count));
      for (int j = 0; j < source.count; j++)
        std::memcpy(cross.values + (size_t)j * inner + at, keys + inner + (size_t)j * 2 * inner, (size_t)size * 4);
    });
  }
}

void State::select(const int32_t* index, int count) {
  std::vector<int32_t> sentence(count);
  std::vector<std::vector<int32_t>> ancestors(count);
  runs_.clear();
  for (int r = 0; r < count; r++) {
    sentence[r] = sentence_[index[r]];
    ancestors[r] = ancestors_[index[r]];
    if (runs_.empty() || runs_.back().sentence != sentence[r]) runs_.push_back({r, 0, sentence[r]});
    runs_.back().count++;
  }
  sentence_.swap(sentence);
  ancestors_.swap(ancestors);
}

void State::truncate(int length) {
  if (length >= length_) return;
  length_ = length;
  steps_.resize(length);
  step_rows_.resize(length);
  for (auto& chain : ancestors_) chain.resize(length);
}

void State::extend() {
  steps_.push_back(arena_.take<float>(rows() * layer_offset_.back()));
  step_rows_.push_back(rows());
  for (int r = 0; r < rows(); r++) ancestors_[r].push_back(r);
  length_++;
}

float* State::remembered(int step, int layer, int row) const {
  const size_t size = layer_offset_[layer + 1] - layer_offset_[layer];
  return steps_[step] + layer_offset_[layer] * step_rows_[step] + size * row;
}

void State::step(const Team& team, Workspace& space, const int32_t* tokens) {
  const Stack& stack = model.decoder;
  auto& own = space.own[team.id];
  Pass pass(team, space, rows());
  pass.embed(model.target_embed, model.target_factor, stack, tokens, {{0, rows(), 0}}, length_ - 1, 0);
  for (int i = 0; i < stack.n_layers; i++) {
    const Layer& l = stack.layers[i];
    auto attend_past = [&] {
      const int heads = l.heads, size = l.head_size, inner = heads * size;
      int known = -1;
      pass.items(rows() * heads, [&](int item) {
        const int row = item / heads, at = item % heads * size;
        const float* q = space.projected + (size_t)row * 3 * inner + at;
        float* now = remembered(length_ - 1, i, row);
        std::memcpy(now + at, q + inner, (size_t)size * 4);
        std::memcpy(now + inner + at, q + 2 * inner, (size_t)size * 4);
        if (row != known)
          for (int t = 0; t < length_; t++) own.past[t] = remembered(t, i, ancestors_[row][t]);
        known = row;
        kernels.attend_scattered(q, own.past, length_, at, inner + at, size, space.mixed + (size_t)row * inner + at,
                                 own.scores);
      });
    };
    pass.sublayer(l.pre, l.mixer_norm, l.qkv, space.projected, NONE, attend_past, l.out, space.mixed);
    if (l.cross_q.weight) {
      const int heads = l.cross_heads, size = l.cross_head_size, inner = heads * size;
      pass.sublayer(
          l.pre, l.cross_norm, l.cross_q, space.projected, NONE,
          [&] {
            pass.items((int)runs_.size() * heads, [&](int item) {
              const Run& run = runs_[item / heads];
              const int at = item % heads * size, s = sources_[run.sentence].count;
              const Cross& cross = cross_[(size_t)i * sources_.size() + run.sentence];
              kernels.attend(space.projected + (size_t)run.first * inner + at, run.count, inner,
                             cross.keys + (size_t)at * padded(s), cross.values + at, inner, s, size,
                             space.mixed + (size_t)run.first * inner + at, inner, own.scores);
            });
          },
          l.cross_out, space.mixed);
    }
    if (l.up.weight)
      pass.sublayer(l.pre, l.ffn_norm, l.up, space.hidden, l.activation, [] {}, l.down, space.hidden);
  }
  pass.prepare_rows(&stack.final_norm, model.output.type);
}

void choose(const Team& team, Workspace& space, int count, const int32_t* wanted_ids, int candidates,
            const std::vector<int32_t>& banned) {
  const Model& m = space.model;
  const Kernels& k = space.kernels;
  auto& own = space.own[team.id];
  const auto& in = have_own_rows(team, count) ? own.few : space.rows;
  std::fill_n(own.best, (size_t)count * candidates, Candidate{-std::numeric_limits<float>::infinity(), -1});
  const int chunks = (m.output.n + CHUNK - 1) / CHUNK;
  auto [first, last] = team.share(chunks);
  auto next_banned = std::lower_bound(banned.begin(), banned.end(), first * CHUNK);
  for (int c = first; c < last; c++) {
    const int base = c * CHUNK, n = std::min(CHUNK, m.output.n - base);
    // The product writes panel p at column 16 p: the chunk's own columns begin `base` before its buffer.
    k.product(m.output, in.inputs, in.scales, count, base / PANEL, (base + n) / PANEL, own.logits - base, CHUNK, NONE);
    auto end_banned = std::lower_bound(next_banned, banned.end(), base + n);
    for (int r = 0; r < count; r++) {
      float* logits = own.logits + (size_t)r * CHUNK;
      for (int v = m.target_vocab; v < base + n; v++)
        if (v >= base) logits[v - base] = -std::numeric_limits<float>::infinity();
      k.exponential_sum(logits, n, &space.largest[(size_t)c * count + r], &space.sums[(size_t)c * count + r]);
      if (wanted_ids && wanted_ids[r] >= base && wanted_ids[r] < base + n)
        space.wanted[r] = logits[wanted_ids[r] - base];
      if (!candidates) continue;
      for (auto b = next_banned; b != end_banned; ++b) logits[*b - base] = -std::numeric_limits<float>::infinity();
      k.top(logits, n, base, own.best + (size_t)r * candidates, candidates);
    }
    next_banned = end_banned;
  }
  team.wait();
}

float log_sum(const Workspace& space, int row, int count) {
  const int chunks = (space.model.output.n + CHUNK - 1) / CHUNK;
  float most = -std::numeric_limits<float>::infinity();
  for (int c = 0; c < chunks; c++) most = std::max(most, space.largest[(size_t)c * count + row]);
  double total = 0;
  for (int c = 0; c < chunks; c++) {
    const size_t at = (size_t)c * count + row;
    total += space.sums[at] * std::exp((double)space.largest[at] - most);
  }
  return (float)(most + std::log(total));
}

void all_logits(const Team& team, Workspace& space, int count, float* logits, int stride) {
  const Model& m = space.model;
  const auto& in = have_own_rows(team, count) ? space.own[team.id].few : space.rows;
  auto [first, last] = panel_share(team, m.output.n);
  space.kernels.product(m.output, in.inputs, in.scales, count, first, last, logits, stride, NONE);
  team.wait();
}

}  // namespace gf
