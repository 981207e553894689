#include "colossal/nn/neighbours.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/token_memory.h"

namespace colossal::nn {
namespace {

/// The edges of a run among the gathered tokens: its last `tail` tokens from `tail_at`, its first `head` from
/// `head_at`.
struct Edges {
  int64_t tail_at, tail, head_at, head;
};

/// The edges of all runs, and the number of edge tokens that each rank sends.
struct EdgePlan {
  EdgePlan(const SequenceCut& cut, int64_t tails, int64_t heads) : edges(cut.lengths.size()) {
    const auto edge = [&](int64_t run, int64_t limit) { return std::min(cut.lengths[run], limit); };
    for (const auto& held : cut.held) {
      int64_t sum = 0;
      for (const int64_t run : held) sum += edge(run, tails) + edge(run, heads);
      size = std::max(size, sum);
    }
    int64_t first = 0;
    for (const auto& held : cut.held) {
      int64_t at = first;
      for (const int64_t run : held) {
        const int64_t tail = edge(run, tails), head = edge(run, heads);
        edges[run] = {at, tail, at + tail, head};
        at += tail + head;
      }
      first += size;
    }
  }
  std::vector<Edges> edges;
  int64_t size = 0;
};

at::Tensor zeros_like(const at::Tensor& x, int64_t tokens) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[1] = tokens;
  return at::zeros(sizes, x.options());
}

/// Returns the `count` tokens before run `run`: edges of earlier runs, and zeros before the first token of the row.
std::vector<at::Tensor> tokens_before(const EdgePlan& plan, const at::Tensor& gathered, int64_t run, int64_t count) {
  std::vector<at::Tensor> found;
  for (int64_t other = run - 1; other >= 0 && count > 0; --other) {
    const Edges& edge = plan.edges[other];
    const int64_t taken = std::min(count, edge.tail);
    found.push_back(gathered.narrow(1, edge.tail_at + edge.tail - taken, taken));
    count -= taken;
  }
  if (count > 0) found.push_back(zeros_like(gathered, count));
  std::reverse(found.begin(), found.end());
  return found;
}

std::vector<at::Tensor> tokens_after(const EdgePlan& plan, const at::Tensor& gathered, int64_t run, int64_t count) {
  std::vector<at::Tensor> found;
  for (size_t other = run + 1; other < plan.edges.size() && count > 0; ++other) {
    const Edges& edge = plan.edges[other];
    const int64_t taken = std::min(count, edge.head);
    found.push_back(gathered.narrow(1, edge.head_at, taken));
    count -= taken;
  }
  if (count > 0) found.push_back(zeros_like(gathered, count));
  return found;
}

/// Returns the document of each token of the rows that this rank has, [B, S], or [1, S] for the sequences of a step;
/// undefined = each row is one.
at::Tensor documents_of(const Tokens& here, const ForwardContext& step, at::Device device) {
  if (step.documents.defined()) return here.rows_of(step.documents);
  const Sequences& sequences = sequences_of(step);
  if (sequences.lengths.size() <= 1) return {};
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < sequences.lengths.size(); ++i)
    numbers.insert(numbers.end(), sequences.lengths[i], static_cast<int64_t>(i));
  return at::tensor(numbers, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
}

}  // namespace

at::Tensor Halo::at(int64_t offset) const {
  require(offset >= -reach_.before && offset <= reach_.after, "model", "an offset must lie within the reach, -",
          reach_.before, " to ", reach_.after, ": got ", offset);
  std::vector<at::Tensor> found;
  for (const Run& run : runs_) {
    const int64_t tokens = run.states.size(1) - reach_.before - reach_.after;
    const auto places = [&](const at::Tensor& all, int64_t from) {
      return all.narrow(1, reach_.before + from, tokens);
    };
    const at::Tensor there = places(run.states, offset);
    if (offset == 0 || !run.documents.defined()) {
      found.push_back(there);
    } else {
      const at::Tensor other = places(run.documents, offset).ne(places(run.documents, 0));
      found.push_back(there.masked_fill(other.unsqueeze(-1), 0));
    }
  }
  return found.size() == 1 ? found.front() : at::cat(found, 1);
}

Neighbours::Neighbours(std::shared_ptr<const TokenRuns> runs, Reach reach, int64_t layer)
    : runs_(std::move(runs)), reach_(reach), layer_(layer) {
  require(reach.before >= 0 && reach.after >= 0, "model", "a reach must not be negative: got ", reach.before,
          " before ", "and ", reach.after, " after");
}

Halo Neighbours::of(const at::Tensor& x, const ForwardContext& step) const {
  if (const auto* remembered = step.parts.find<RememberedTokens>()) return after_memory(x, step, *remembered->memory);
  require(
      cache_of(step) == nullptr, "model",
      "a step that generates must have nn::RememberedTokens for layers that read the tokens before each token: got a "
      "cache alone");
  return around(x, step, reach_.before).halo;
}

Neighbours::Around Neighbours::around(const at::Tensor& x, const ForwardContext& step, int64_t tails) const {
  const SequenceCut cut = runs_->cut(step, x.size(1));
  Around found{.halo = Halo(reach_)};
  at::Tensor gathered;
  const EdgePlan plan(cut, tails, reach_.after);
  const std::vector<int64_t>& held = cut.held.at(runs_->rank());
  std::vector<at::Tensor> own;
  int64_t next = 0;
  for (const int64_t run : held) {
    own.push_back(x.narrow(1, next, cut.lengths[run]));
    next += cut.lengths[run];
  }
  if (runs_->ranks() > 1 && plan.size > 0) {
    std::vector<at::Tensor> sent;
    int64_t tokens = 0;
    for (size_t i = 0; i < held.size(); ++i) {
      const Edges& edge = plan.edges[held[i]];
      sent.push_back(own[i].narrow(1, own[i].size(1) - edge.tail, edge.tail));
      sent.push_back(own[i].narrow(1, 0, edge.head));
      tokens += edge.tail + edge.head;
    }
    sent.push_back(zeros_like(x, plan.size - tokens));
    gathered = runs_->gathered(at::cat(sent, 1));
  } else {
    gathered = x.narrow(1, 0, 0);  // there are no other runs
  }
  const at::Tensor documents = documents_of(runs_->here(step), step, x.device());
  const at::Tensor around =
      documents.defined() ? at::constant_pad_nd(documents, {reach_.before, reach_.after}, -1) : documents;
  for (size_t i = 0; i < held.size(); ++i) {
    std::vector<at::Tensor> states = tokens_before(plan, gathered, held[i], reach_.before);
    states.push_back(own[i]);
    for (at::Tensor& after : tokens_after(plan, gathered, held[i], reach_.after)) states.push_back(std::move(after));
    // Every rank takes part in the backward pass of the gathering, also one that has no neighbours on other ranks.
    states.push_back(gathered.narrow(1, 0, 0));
    int64_t first = 0;  // index of the run in the row; its surroundings have the same index in `around`
    for (int64_t run = 0; run < held[i]; ++run) first += cut.lengths[run];
    found.halo.runs_.push_back(
        {at::cat(states, 1),
         around.defined() ? around.narrow(1, first, own[i].size(1) + reach_.before + reach_.after) : around});
  }
  if (runs_->ranks() > 1) {
    const auto runs = static_cast<int64_t>(cut.lengths.size());
    found.end = at::cat(tokens_before(plan, gathered, runs, std::min(tails, cut.tokens())), 1);
  }
  return found;
}

Halo Neighbours::after_memory(const at::Tensor& x, const ForwardContext& step, TokenMemory& memory) const {
  require(reach_.after == 0, "model", "a layer that reads ", reach_.after,
          " tokens after each token does not generate: their values are not known; train and score with it");
  require(!step.documents.defined(), "model", "generation takes the sequences of a row (nn::Sequences), no documents");
  const std::vector<TokenMemory::Sequence>& sequences = memory.sequences();
  if (runs_->ranks() > 1) {
    // The ranks read parts of one prompt. Each remembers the end of all of it, because later each reads every token.
    require(sequences.size() == 1 && sequences.front().first == 0, "model",
            "ranks that split the tokens of a row must read one sequence from its start: got ", sequences.size());
    Around all = around(x, step, reach_.before + memory.taken_back());
    memory.remember(layer_, 0, reach_.before, all.end);
    return std::move(all.halo);
  }
  Halo halo(reach_);
  std::vector<at::Tensor> rows;
  int64_t next = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const at::Tensor own = x.narrow(1, next, sequences[i].tokens);
    halo.runs_.push_back({at::cat({memory.before(layer_, i, reach_.before, own), own}, 1), {}});
    memory.remember(layer_, i, reach_.before, own);
    next += sequences[i].tokens;
  }
  require(next == x.size(1), "model", "the sequences of a step must have its ", x.size(1), " tokens: got ", next);
  return halo;
}

}  // namespace colossal::nn
