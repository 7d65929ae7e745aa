#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gf {
namespace {

constexpr int CHUNK = 512;    // logits that are looked at while they are in the cache
constexpr int TILE_GRAIN = 4;  // panels, since kernels take four at a time
constexpr int FEW = 8;         // rows that the leader does alone, sooner than the others hear of them

template <class F>
void each_stack_size(const Model& m, F f) {
  for (const Stack* stack : {&m.encoder, &m.decoder})
    for (int i = 0; i < stack->n_layers; i++) f(stack->layers[i]);
}

struct Widths {
  int input = 0, projected = 0, mixed = 0, hidden = 0, head = 0, balanced = 0;
};

Widths widths(const Model& m) {
  Widths w;
  w.input = w.projected = m.width;
  each_stack_size(m, [&](const Layer& l) {
    w.projected = std::max({w.projected, l.qkv.n, l.cross_q.n, l.cross_kv.n});
    w.mixed = std::max({w.mixed, l.out.k, l.cross_out.k});
    w.hidden = std::max(w.hidden, l.up.n);
    w.head = std::max({w.head, l.head_size, l.cross_head_size});
    for (const Linear* each : {&l.qkv, &l.out, &l.cross_q, &l.cross_out, &l.up, &l.down}) {
      w.input = std::max(w.input, each->k);
      if (each->extras > 0) w.balanced = std::max(w.balanced, each->k);
    }
  });
  return w;
}

// One pass of a team over some rows. The leader runs it; each() shares the work out.
class Pass {
 public:
  Pass(Team& team, Workspace& space, int count) : team_(team), space_(space), k_(space.kernels), count_(count) {}

  float* x(int row) { return space_.x + (size_t)row * space_.model.width; }

  void embed(const Linear& table, float factor, const int32_t* tokens) {
    rows([&](int r) { k_.embed(table, tokens[r], factor, x(r)); });
  }
  // Adds the stack's positions, of each row its own, and norms the sum where the stack does.
  void place(const Stack& stack, const int32_t* positions) {
    const Model& m = space_.model;
    rows([&](int r) {
      if (stack.positions) k_.add(x(r), stack.positions + (size_t)positions[r] * m.width, m.width);
      if (stack.input_norm.gain) k_.layer_norm(x(r), m.d, m.width, stack.input_norm, x(r));
    });
    if (stack.frequencies)
      rows([&](int r) {
        const int half = stack.turned / 2;
        float* angles = space_.angles + (size_t)r * stack.turned;
        for (int i = 0; i < half; i++) {
          const double angle = positions[r] * stack.frequencies[i];
          angles[i] = (float)(std::cos(angle) * stack.sharpness);
          angles[half + i] = (float)(std::sin(angle) * stack.sharpness);
        }
      });
  }

  // Turns `heads` neighbouring heads of a row by the row's angles.
  void turn(const Stack& stack, int row, float* x, int heads, int size) {
    if (!stack.frequencies) return;
    const float* angles = space_.angles + (size_t)row * stack.turned;
    for (int h = 0; h < heads; h++) k_.turn(x + h * size, angles, angles + stack.turned / 2, stack.turned / 2);
  }

  // x ← x + last(middle(first(norm(x)))), or with the norm behind the sum. `sum` false leaves last(…) in `delta`;
  // `held` is what such a sub-layer left, added now.
  template <class Middle>
  void sublayer(bool pre, const Norm& norm, const Linear& first, float* first_out, int32_t activation, Middle middle,
                const Linear& last, const float* last_in, int last_stride, float* delta, bool sum = true,
                const float* held = nullptr) {
    prepare_rows(pre ? &norm : nullptr, first);
    product(first, first_out, activation);
    middle();
    prepare(last, last_in, last_stride);
    product(last, delta, NONE);
    if (!sum) return;
    const int width = space_.model.width;
    rows([&](int r) {
      k_.add(x(r), delta + (size_t)r * width, width);
      if (held) k_.add(x(r), held + (size_t)r * width, width);
      if (!pre) k_.layer_norm(x(r), space_.model.d, width, norm, x(r));
    });
  }

  // The feed-forward part of a layer.
  void feed(const Layer& l, const float* held = nullptr) {
    const int stride = l.up.n, inner = inputs_of(l.down);
    auto gate = [&] {
      if (l.gated) rows([&](int r) { k_.gate(space_.hidden + (size_t)r * stride, inner, l.activation); });
    };
    sublayer(l.pre, l.ffn_norm, l.up, space_.hidden, l.gated ? (int32_t)NONE : l.activation, gate, l.down,
             space_.hidden, stride, space_.delta, true, held);
  }

  // The rows, normed or not, as inputs of a product.
  void prepare_rows(const Norm* norm, const Linear& linear) {
    const int width = space_.model.width;
    const bool normed = norm && norm->gain;
    if (normed) rows([&](int r) { k_.layer_norm(x(r), space_.model.d, width, *norm, space_.normed + (size_t)r * width); });
    prepare(linear, normed ? space_.normed : space_.x, width);
  }

  void prepare(const Linear& l, const float* from, int stride) {
    const size_t size = l.type == INT8 ? 1 : l.type == BF16 ? 2 : 4;
    if (l.extras < 0)  // one thread is asked for then
      for (int r = 0; r < count_; r++)
        for (int i = 0; i < l.k; i++) l.factors[i] = std::max(l.factors[i], std::fabs(from[(size_t)r * stride + i]));
    rows([&](int r) {
      const float* x = from + (size_t)r * stride;
      if (l.extras > 0) {
        float* balanced = space_.balanced + (size_t)r * l.k;
        k_.balance(x, inputs_of(l), l.factors, l.columns, l.extras, balanced);
        x = balanced;
      }
      k_.prepare(l.type, x, 1, l.k, l.k, space_.inputs + (size_t)r * l.k * size, space_.scales + r);
    });
  }

  void product(const Linear& linear, float* out, int32_t activation) {
    team_.each(linear.n / PANEL, TILE_GRAIN, [&](int first, int last, int) {
      k_.product(linear, space_.inputs, space_.scales, count_, first, last, out, linear.n, activation);
    });
  }

  // What is done to each row alone is shared out only where there are enough of them to be worth it.
  template <class Row>
  void rows(Row row) {
    if (count_ <= FEW)
      for (int r = 0; r < count_; r++) row(r);
    else
      items(count_, [&](int r, int) { row(r); });
  }

  // item(i, part) for all i < n.
  template <class Item>
  void items(int n, Item item) {
    team_.each(n, 1, [&](int first, int last, int part) {
      for (int i = first; i < last; i++) item(i, part);
    });
  }

 private:
  Team& team_;
  Workspace& space_;
  const Kernels& k_;
  const int count_;
};

// Attention among the rows of each run.
void attend_within(Pass& pass, Workspace& space, const Layer& l, const std::vector<Run>& runs) {
  const int heads = l.heads, size = l.head_size, inner = heads * size, stride = 3 * inner;
  pass.items((int)runs.size() * heads, [&](int item, int part) {
    const auto& own = space.own[part];
    const Run& run = runs[item / heads];
    const int at = item % heads * size;
    const float* q = space.projected + (size_t)run.first * stride + at;
    space.kernels.transpose_keys(q + inner, run.count, stride, size, own.transposed);
    space.kernels.attend(q, run.count, stride, own.transposed, q + 2 * inner, stride, run.count, size,
                         space.mixed + (size_t)run.first * inner + at, inner, own.scores);
  });
}

}  // namespace

Workspace::Workspace(const Model& m, const Kernels& k, int parts, int count, int keys) : model(m), kernels(k), own(parts) {
  const Widths w = widths(m);
  x = arena_.take<float>((size_t)count * m.width);
  normed = arena_.take<float>((size_t)count * m.width);
  scales = arena_.take<float>(count);
  balanced = arena_.take<float>((size_t)count * w.balanced);
  inputs = arena_.take<char>((size_t)count * w.input * 4);
  projected = arena_.take<float>((size_t)count * w.projected);
  mixed = arena_.take<float>((size_t)count * w.mixed);
  hidden = arena_.take<float>((size_t)count * w.hidden);
  delta = arena_.take<float>((size_t)count * m.width);
  held = arena_.take<float>((size_t)count * m.width);
  angles = arena_.take<float>((size_t)count * std::max(m.encoder.turned, m.decoder.turned));
  for (Own& each : own) {
    each.scores = arena_.take<float>(4 * (size_t)padded(keys));
    each.transposed = arena_.take<float>((size_t)padded(keys) * w.head);
    each.logits = nullptr;
    each.best = nullptr;
  }
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

void encode(Team& team, Workspace& space, const std::vector<Run>& runs, const int32_t* ids, float* out) {
  const Model& m = space.model;
  const Stack& stack = m.encoder;
  const int count = runs.empty() ? 0 : runs.back().first + runs.back().count;
  std::vector<int32_t> positions;
  for (const Run& run : runs)
    for (int i = 0; i < run.count; i++) positions.push_back(i);
  Pass pass(team, space, count);
  pass.embed(m.source_embed, m.source_factor, ids);
  pass.place(stack, positions.data());
  for (int i = 0; i < stack.n_layers; i++) {
    const Layer& l = stack.layers[i];
    pass.sublayer(l.pre, l.mixer_norm, l.qkv, space.projected, NONE, [&] { attend_within(pass, space, l, runs); }, l.out,
                  space.mixed, inputs_of(l.out), space.delta);
    if (l.up.weight) pass.feed(l);
  }
  for (int r = 0; r < count; r++) {
    float* to = out + (size_t)r * m.width;
    if (stack.final_norm.gain)
      space.kernels.layer_norm(pass.x(r), m.d, m.width, stack.final_norm, to);
    else
      std::memcpy(to, pass.x(r), (size_t)m.width * 4);
  }
}

State::State(const Model& m, const Kernels& k, const int32_t* ids, const int32_t* lengths, int sentences)
    : model(m), kernels(k), ids_(ids) {
  for (int s = 0; s < sentences; s++) {
    sentence_.push_back(s);
    if (!m.encoder.n_layers) continue;
    sources_.push_back({source_tokens_, lengths[s], s});
    source_tokens_ += lengths[s];
    longest_source_ = std::max(longest_source_, lengths[s]);
  }
  past_.resize(sentences);
  memory_ = arena_.take<float>((size_t)source_tokens_ * m.width);
  cross_.resize((size_t)m.decoder.n_layers * sentences);
  for (int i = 0; i < m.decoder.n_layers; i++) {
    const Layer& l = m.decoder.layers[i];
    const int inner = l.cross_heads * l.cross_head_size;
    for (int s = 0; l.cross_q.weight && s < sentences; s++)
      cross_[(size_t)i * sentences + s] = {arena_.take<float>((size_t)inner * padded(lengths[s])),
                                           arena_.take<float>((size_t)inner * lengths[s])};
    layer_offset_.push_back(floats_);
    floats_ += 2 * (size_t)l.kv_heads * l.head_size;
  }
}

void State::encode(Team& team, Workspace& space) {
  gf::encode(team, space, sources_, ids_, memory_);
  // The encoder's output, prepared once, gives every decoder layer's keys and values.
  Pass pass(team, space, source_tokens_);
  std::memcpy(space.x, memory_, (size_t)source_tokens_ * model.width * 4);
  for (int i = 0; i < model.decoder.n_layers; i++) {
    const Layer& l = model.decoder.layers[i];
    if (!l.cross_q.weight) continue;
    if (i == 0 || model.decoder.layers[i - 1].cross_kv.type != l.cross_kv.type)
      pass.prepare_rows(nullptr, l.cross_kv);
    pass.product(l.cross_kv, space.projected, NONE);
    const int size = l.cross_head_size, inner = l.cross_heads * size;
    pass.items((int)sources_.size() * l.cross_heads, [&](int item, int) {
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
  std::vector<std::vector<float*>> past(count);
  std::vector<int> last(rows(), -1);  // a row's last successor takes its list over
  for (int r = 0; r < count; r++) last[index[r]] = r;
  for (int r = 0; r < count; r++) {
    sentence[r] = sentence_[index[r]];
    if (last[index[r]] == r)
      past[r] = std::move(past_[index[r]]);
    else
      past[r] = past_[index[r]];
  }
  sentence_.swap(sentence);
  past_.swap(past);
}

void State::truncate(int tokens) {
  for (auto& chain : past_) chain.resize(chain.size() - tokens);
}

void State::extend(const int32_t* counts) {
  tokens_.clear();
  runs_.clear();
  for (int r = 0; r < rows(); r++) {
    const int count = counts ? counts[r] : 1;
    if (runs_.empty() || runs_.back().sentence != sentence_[r]) runs_.push_back({(int)tokens_.size(), 0, sentence_[r]});
    runs_.back().count += count;
    for (int i = 0; i < count; i++) {
      tokens_.push_back({r, (int32_t)past_[r].size()});
      past_[r].push_back(arena_.take<float>(floats_));
    }
  }
}

void State::step(Team& team, Workspace& space, const int32_t* tokens, bool last_only, const Watch* watch) {
  const Stack& stack = model.decoder;
  const int count = (int)tokens_.size();
  std::vector<int32_t> positions;
  for (const Token& token : tokens_) positions.push_back(token.position);
  Pass pass(team, space, count);
  pass.embed(model.target_embed, model.target_factor, tokens);
  pass.place(stack, positions.data());
  for (int i = 0; i < stack.n_layers; i++) {
    const Layer& l = stack.layers[i];
    auto attend_past = [&] {
      const int heads = l.heads, size = l.head_size, queries = heads * size, inner = l.kv_heads * size;
      const int stride = queries + 2 * inner, group = heads / l.kv_heads;
      const size_t offset = layer_offset_[i];
      pass.rows([&](int t) {
        float* q = space.projected + (size_t)t * stride;
        pass.turn(stack, t, q, heads + l.kv_heads, size);
        std::memcpy(past_[tokens_[t].row][tokens_[t].position] + offset, q + queries, (size_t)2 * inner * 4);
      });
      pass.items(count * heads, [&](int item, int part) {
        const int t = item / heads, head = item % heads, known = tokens_[t].position + 1;
        const int seen = l.window && l.window < known ? l.window : known;
        const size_t key = offset + (size_t)(head / group) * size;
        kernels.attend_scattered(space.projected + (size_t)t * stride + head * size,
                                 past_[tokens_[t].row].data() + known - seen, seen, (int)key, (int)key + inner, size,
                                 space.mixed + (size_t)t * queries + head * size, space.own[part].scores);
      });
    };
    pass.sublayer(l.pre, l.mixer_norm, l.qkv, space.projected, NONE, attend_past, l.out, space.mixed,
                  inputs_of(l.out), l.parallel ? space.held : space.delta, !l.parallel);
    if (l.cross_q.weight) {
      const int heads = l.cross_heads, size = l.cross_head_size, inner = heads * size;
      auto attend_source = [&] {
        pass.items((int)runs_.size() * heads, [&](int item, int part) {
          const Run& run = runs_[item / heads];
          const int at = item % heads * size, s = sources_[run.sentence].count;
          const Cross& cross = cross_[(size_t)i * sources_.size() + run.sentence];
          float* scores = space.own[part].scores;
          auto attend = [&](int row, int count) {
            const size_t from = (size_t)(run.first + row) * inner + at;
            kernels.attend(space.projected + from, count, inner, cross.keys + (size_t)at * padded(s), cross.values + at,
                           inner, s, size, space.mixed + from, inner, scores);
          };
          if (!watch) return attend(0, run.count);
          // The kernel leaves a lone query's weights in its scratch; the numbers are those of many queries.
          for (int t = 0; t < run.count; t++) {
            attend(t, 1);
            for (int w = 0; w < watch->wanted; w++)
              if (watch->layers[w] == i && watch->heads[w] == item % heads)
                std::copy_n(scores, s, watch->out[run.sentence] + ((size_t)w * run.count + t) * s);
          }
        });
      };
      pass.sublayer(l.pre, l.cross_norm, l.cross_q, space.projected, NONE, attend_source, l.cross_out, space.mixed,
                    inputs_of(l.cross_out), space.delta);
    }
    if (l.up.weight) pass.feed(l, l.parallel ? space.held : nullptr);
  }
  if (last_only && count > rows()) {
    int row = 0;
    for (int t = 0; t < count; t++)
      if (t + 1 == count || tokens_[t + 1].row != tokens_[t].row) std::memmove(pass.x(row++), pass.x(t), (size_t)model.width * 4);
    Pass(team, space, row).prepare_rows(&stack.final_norm, model.output);
  } else {
    pass.prepare_rows(&stack.final_norm, model.output);
  }
}

Linear narrowed(const Linear& all, const int32_t* ids, int count, Arena& arena) {
  const int n = padded(count), groups = all.k / (all.type == INT8 ? 4 : all.type == BF16 ? 2 : 1);
  const bool scaled = all.type == INT8;
  auto* weight = arena.take<int32_t>((size_t)n * groups);
  auto* scale = arena.take<float>(n);
  auto* bias = arena.take<float>(n);
  auto* row_sums = arena.take<int32_t>(n);
  for (int i = 0; i < n; i++) {
    const int id = ids[i < count ? i : 0];  // what stands behind the last is never looked at
    const auto* from = (const int32_t*)all.weight + (size_t)(id / PANEL) * groups * PANEL + id % PANEL;
    int32_t* to = weight + (size_t)(i / PANEL) * groups * PANEL + i % PANEL;
    for (int g = 0; g < groups; g++) to[g * PANEL] = from[g * PANEL];
    scale[i] = scaled ? all.scale[id] : 1.0f;
    bias[i] = all.bias[id];
    row_sums[i] = scaled ? all.row_sums[id] : 0;
  }
  return {weight, scale, bias, row_sums, nullptr, nullptr, n, all.k, all.type, 0};
}

void choose(Team& team, Workspace& space, const std::vector<Outputs>& outputs, const int32_t* wanted_ids, int candidates,
            const std::vector<int32_t>& banned, const std::vector<std::vector<int32_t>>& forbidden) {
  const Kernels& k = space.kernels;
  constexpr float never = -std::numeric_limits<float>::infinity();
  const int count = outputs.back().first + outputs.back().rows;
  const size_t chunks = (space.model.output.n + CHUNK - 1) / CHUNK;
  std::fill_n(space.largest, chunks * count, never);
  std::fill_n(space.sums, chunks * count, 0.0f);
  for (const Outputs& o : outputs) {
    const Linear& linear = *o.linear;
    const size_t width = linear.type == INT8 ? 1 : linear.type == BF16 ? 2 : 4;
    const char* inputs = space.inputs + (size_t)o.first * linear.k * width;
    // Where an id stands among the outputs; −1: nowhere.
    auto place = [&](int32_t id) {
      if (!o.ids) return id;
      const int32_t* at = std::lower_bound(o.ids, o.ids + o.size, id);
      return at < o.ids + o.size && *at == id ? (int32_t)(at - o.ids) : -1;
    };
    team.each(linear.n, CHUNK, [&](int first, int last, int part) {
      auto& own = space.own[part];
      Candidate* best = own.best + (size_t)o.first * candidates;
      std::fill_n(best, (size_t)o.rows * candidates, Candidate{never, -1});
      for (int base = first; base < last; base += CHUNK) {
        const int n = std::min(CHUNK, last - base), c = base / CHUNK;
        // The product writes panel p at column 16 p: the chunk's own columns begin `base` before its buffer.
        k.product(linear, inputs, space.scales + o.first, o.rows, base / PANEL, (base + n) / PANEL, own.logits - base,
                  CHUNK, NONE);
        for (int i = 0; i < o.rows; i++) {
          const int r = o.first + i;
          float* logits = own.logits + (size_t)i * CHUNK;
          auto forbid = [&](int32_t id) {
            const int32_t at = place(id) - base;
            if (at >= 0 && at < n) logits[at] = never;
          };
          for (int v = std::max(o.size - base, 0); v < n; v++) logits[v] = never;
          k.exponential_sum(logits, n, &space.largest[(size_t)c * count + r], &space.sums[(size_t)c * count + r]);
          const int32_t wanted = wanted_ids[r] < 0 ? -1 : place(wanted_ids[r]) - base;
          if (wanted >= 0 && wanted < n) space.wanted[r] = logits[wanted];
          Candidate* best_of_row = best + (size_t)i * candidates;
          if (!candidates || !(space.largest[(size_t)c * count + r] > best_of_row[candidates - 1].logit)) continue;
          for (int32_t id : banned) forbid(id);
          for (int32_t id : forbidden[r]) forbid(id);
          k.top(logits, n, base, best_of_row, candidates);
        }
      }
      for (int i = 0; o.ids && i < o.rows * candidates; i++)
        if (best[i].id >= 0) best[i].id = o.ids[best[i].id];
    });
  }
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

void all_logits(Team& team, Workspace& space, int count, float* logits) {
  Pass(team, space, count).product(space.model.output, logits, NONE);
}

}  // namespace gf
