// Attention of a sequence that is split over ranks, compared with attention to the whole: common code of the tests of
// the modes of sequence parallelism.
//
//   check_attention({.config = {4, "usp", 2}, .tokens = 21, .options = {.alibi = true}});    // throws ParityError
//   comm::run_ranks(4, [&](comm::World& world) { RankOfSequence(world, c).run(c); });        // for what it sends
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/runs.h"
#include "support/decorated_world.h"
#include "support/tolerance.h"

namespace colossal::test {

inline constexpr int64_t kSequenceRows = 2, kSequenceHeadSize = 4;

struct SequenceCase {
  parallel::SequenceConfig config;
  int64_t tokens = 24, heads = 12, kv_heads = 12;
  nn::AttentionOptions options{};
  int documents = 0;  ///< 0: one per row; 1: runs, with other borders in each row; 2: every third token has the same
                      ///< document; 3: a short one and a long one, which a zigzag would split unevenly
};

inline std::string name_of(const SequenceCase& c) {
  return concat(c.config.mode, " of ", c.config.size, ", ulysses ", c.config.ulysses, ": ", c.tokens, " tokens, heads ",
                c.heads, "/", c.kv_heads, ", causal ", c.options.causal, ", window ", c.options.window, ", alibi ",
                c.options.alibi, ", documents ", c.documents);
}

/// Returns documents int64 [kSequenceRows, tokens], or undefined for one per row.
inline at::Tensor documents_of(const SequenceCase& c) {
  if (c.documents == 0) return {};
  const at::Tensor at = at::arange(c.tokens, at::kLong) + at::arange(kSequenceRows, at::kLong).unsqueeze(1) * 3;
  if (c.documents == 3) return at.gt(c.tokens / 4).to(at::kLong);
  return c.documents == 1 ? at.div(7, "floor") : at.remainder(3);
}

/// Queries, keys, values and the gradient of the result, fp64 [kSequenceRows, tokens, heads, kSequenceHeadSize].
struct SequenceInputs {
  explicit SequenceInputs(const SequenceCase& c)
      : q(values(c.tokens, c.heads, "q")),
        k(values(c.tokens, c.kv_heads, "k")),
        v(values(c.tokens, c.kv_heads, "v")),
        gradient(values(c.tokens, c.heads, "gradient")) {}
  at::Tensor q, k, v, gradient;

 private:
  static at::Tensor values(int64_t tokens, int64_t heads, const std::string& name) {
    auto generator = at::detail::createCPUGenerator(derive_seed(7, name));
    return at::randn({kSequenceRows, tokens, heads, kSequenceHeadSize}, generator, at::kDouble);
  }
};

/// The result and the gradients of q, k and v.
using AttentionResults = std::vector<at::Tensor>;

template <class Attend>
AttentionResults run_attention(const SequenceInputs& in, const Attend& attend) {
  const AttentionResults leaves{in.q.detach().clone().requires_grad_(), in.k.detach().clone().requires_grad_(),
                                in.v.detach().clone().requires_grad_()};
  const at::Tensor out = attend(leaves);
  out.backward(in.gradient);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

/// Returns the results of one process.
inline AttentionResults run_whole(const SequenceCase& c) {
  const ops::AttentionMask mask{.causal = c.options.causal,
                                .documents = documents_of(c),
                                .scale = c.options.scale,
                                .window = c.options.window,
                                .alibi = c.options.alibi ? ops::alibi_slopes(c.heads) : at::Tensor(),
                                .soft_cap = c.options.soft_cap};
  return run_attention(SequenceInputs(c), [&](const AttentionResults& x) {
    return ops::attention(x[0].transpose(1, 2), x[1].transpose(1, 2), x[2].transpose(1, 2), mask).transpose(1, 2);
  });
}

/// This rank's part of a case, in its mode.
struct RankOfSequence {
  RankOfSequence(comm::World& world, const SequenceCase& c)
      : world(world),
        mesh(world, parallel::sequence_axes(c.config)),
        exchange(with_sequence_mode(c.config, [&](auto mode) { return mode.exchange(mesh, c.config); })),
        cut(parallel::sequence_cut(c.config, c.tokens, documents_of(c), {c.options})),
        runs(parallel::runs_of(cut, world.rank(), world.size())) {
    parallel::check_heads(c.config, c.heads);
  }

  at::Tensor own(const at::Tensor& whole) const { return parallel::tokens_at(whole, 1, runs).contiguous(); }

  AttentionResults run(const SequenceCase& c) {
    SequenceInputs in(c);
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.gradient}) *x = own(*x);
    const parallel::SequenceMask mask{c.options, c.options.alibi ? ops::alibi_slopes(c.heads) : at::Tensor(),
                                      documents_of(c)};
    const comm::PhaseScope backward(world.traffic(), comm::Phase::Backward);
    return run_attention(in, [&](const AttentionResults& x) {
      const comm::PhaseScope forward(world.traffic(), comm::Phase::Forward);
      return exchange->attend({x[0], x[1], x[2]}, cut, mask);
    });
  }

  comm::World& world;
  comm::Mesh mesh;
  std::shared_ptr<const parallel::SequenceExchange> exchange;
  nn::SequenceCut cut;
  std::vector<ops::PositionRun> runs;
};

/// Compares all ranks with one process, each rank in the world that `decorate` makes. Throws ParityError on the first
/// difference.
inline void check_attention(const SequenceCase& c, const std::function<DecoratedWorld(comm::World&)>& decorate = {}) {
  const AttentionResults want = run_whole(c);
  comm::run_ranks(static_cast<int>(c.config.size), [&](comm::World& true_world) {
    std::optional<DecoratedWorld> decorated;
    if (decorate) decorated.emplace(decorate(true_world));
    RankOfSequence rank(decorated ? *decorated : true_world, c);
    const AttentionResults got = rank.run(c);
    const char* const names[] = {"result", "gradient of q", "gradient of k", "gradient of v"};
    for (size_t i = 0; i < want.size(); ++i)
      // The tolerance follows from the size of the whole, because a first token's gradients of scores are zero.
      expect_within(got[i], rank.own(want[i]), tolerance(want[i], c.tokens * c.heads),
                    concat(name_of(c), ": ", names[i]));
  });
}

/// Returns a config. In usp, pairs exchange heads, and the pairs form a ring.
inline parallel::SequenceConfig config_of(const std::string& mode, int64_t size) {
  return {.size = size, .mode = mode, .ulysses = mode == "usp" && size % 2 == 0 ? 2 : 1};
}

/// Returns the smallest number of ranks that uses every part of a mode: a pair, for usp two pairs.
inline int64_t few_ranks(const std::string& mode) { return mode == "usp" ? 4 : 2; }
/// Returns the smallest number of ranks for which a ring has ranks that are not neighbours: three, for usp three
/// pairs.
inline int64_t odd_ranks(const std::string& mode) { return mode == "usp" ? 6 : 3; }

}  // namespace colossal::test
