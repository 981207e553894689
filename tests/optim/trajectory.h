// Compares an optimizer with the formula of its paper: many steps on whole tensors, with the same result under every
// sharding.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/optim/optimizer.h"
#include "colossal/optim/shard_states.h"
#include "optim/shards.h"
#include "support/tolerance.h"

namespace colossal::optim {

struct Layout {
  int data = 1, tensor = 1;
  bool zero = false;  ///< true: replicas shard the states
};
inline std::string to_string(const Layout& l) {
  return concat("data ", l.data, ", tensor ", l.tensor, l.zero ? ", shared out" : "");
}

inline std::vector<Layout> layouts() {
  return {{1, 1, false}, {2, 1, true}, {3, 1, true},  {1, 2, false}, {1, 3, false},
          {2, 1, false}, {2, 2, true}, {2, 2, false}, {3, 2, true}};
}

/// Parameters that are split by rows or by columns, evenly or with padding, or in segments, some of them replicated.
/// One is not split.
inline void declare(nn::Parameters& parameters) {
  using tensor::ShardSpec;
  const auto init = nn::Init::normal(1);
  parameters.add("rows", ShardSpec::split({7, 5}, 0, {"tensor"}), init, true);
  parameters.add("columns", ShardSpec::split({5, 12}, 1, {"tensor"}), init, true);
  parameters.add("bias", ShardSpec::split({7}, 0, {"tensor"}), init, false);
  parameters.add("whole", ShardSpec::whole({6, 9}), init, true);
  parameters.add("heads", ShardSpec::split({8, 5}, 0, {"tensor"}, {{6, 1}, {2, 2, true}}), init, true);
  parameters.add("norm", ShardSpec::whole({5}), init, false);
  for (const char* name : {"rows", "whole", "heads"}) parameters.at(name).hidden_matrix = true;  // columns: a table
  ParameterGroups{{"columns", "[hn]*"}, {0.5, 3}, {2, 0.25}}.apply(parameters);  // separate rates and decays
}

/// A logical tensor in the formula.
struct Plain {
  at::Tensor w;
  double rate, decay;  ///< factors
  std::map<std::string, at::Tensor> state;
  std::vector<int64_t> matrix_rows{};  ///< rows of the hidden matrices that it consists of; empty = no hidden matrix
  at::Tensor& of(const std::string& name) {
    at::Tensor& t = state[name];
    if (!t.defined()) t = at::zeros_like(w);
    return t;
  }
};
/// One step of the formula on a logical tensor; `g` is the gradient, and t counts from 1.
using Formula = std::function<void(Plain& plain, const at::Tensor& g, int64_t t, double rate)>;

inline at::Tensor gradient_of(const std::string& name, const std::vector<int64_t>& shape, int64_t t) {
  return at::randn(shape, at::detail::createCPUGenerator(derive_seed(derive_seed(5, name), static_cast<uint64_t>(t))),
                   at::kDouble);
}
inline double rate_of(int64_t t) { return 0.02 / (1 + 0.1 * static_cast<double>(t)); }

inline std::map<std::string, Plain> plain_trajectory(const Formula& formula, int64_t steps) {
  nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
  declare(parameters);
  std::map<std::string, Plain> all;
  for (const nn::Parameter& p : parameters) {
    all[p.name] = {p.value.detach().clone(), p.rate, p.decay, {}};
    if (p.hidden_matrix)
      for (const tensor::Segment& s : p.spec.splits[0].segments) all[p.name].matrix_rows.push_back(s.size);
  }
  for (int64_t t = 1; t <= steps; ++t)
    for (auto& [name, plain] : all)
      formula(plain, gradient_of(name, plain.w.sizes().vec(), t), t, rate_of(t) * plain.rate);
  return all;
}

/// Calls body(flat block of `buffer`, the same block of a logical tensor) for all blocks of a piece.
inline void for_blocks(const tensor::MeshCoordinates& coordinates, const memory::Piece& piece, const at::Tensor& buffer,
                       const at::Tensor& logical, const std::function<void(at::Tensor, at::Tensor)>& body) {
  const auto shape = piece.parameter->spec.local_shape(coordinates);
  for (const tensor::LocalBox& block : tensor::local_boxes(piece.parameter->spec, coordinates, piece.part)) {
    at::Tensor whole = logical;
    for (size_t d = 0; d < block.size.size(); ++d)
      whole = whole.narrow(static_cast<int64_t>(d), block.start[d], block.size[d]);
    body(tensor::at_local_box(of_piece(buffer, piece), shape, piece.part, block), whole);
  }
}

/// The parameters of one rank under a layout, in two shards, with operations for tests.
struct RankState {
  RankState(comm::World& world, const Layout& layout, const std::shared_ptr<memory::OffloadStore>& offload = nullptr)
      : mesh(world, {comm::Mesh::batch("data", layout.data), {"tensor", layout.tensor}}),
        parameters(mesh.coordinates(), {at::kDouble, at::kCPU, 1}) {
    declare(parameters);
    std::vector<nn::Parameter*> chunks[2];
    size_t i = 0;
    for (nn::Parameter& p : parameters) chunks[i++ < 3 ? 0 : 1].push_back(&p);
    for (const auto& chunk : chunks) {
      const int index = mesh.index("data");
      shards.push_back(layout.zero ? make_shard(chunk, parameters.options(), index, layout.data, true, offload)
                                   : make_shard(chunk, parameters.options(), 0, 1, index == 0, offload));
    }
  }

  void set_gradients(int64_t t, double factor) {
    for (memory::Shard& shard : shards)
      for (const memory::Piece& piece : shard.pieces())
        for_blocks(mesh.coordinates(), piece, shard.lease()->gradients,
                   gradient_of(piece.parameter->name, piece.parameter->spec.shape, t) * factor,
                   [](at::Tensor mine, at::Tensor whole) { mine.copy_(whole); });
  }

  comm::Mesh mesh;
  nn::Parameters parameters;
  std::vector<memory::Shard> shards;
};

constexpr int64_t kSteps = 20, kManySteps = 100;

/// Throws test::ParityError unless every block of every rank equals the block of the formula's trajectory, within 1e-12
/// of its largest value.
inline void expect_trajectory(const OptimizerConfig& config, const std::map<std::string, Plain>& want,
                              const Layout& layout, int64_t steps = kSteps, const comm::RankOptions& options = {}) {
  comm::run_ranks(
      layout.data * layout.tensor,
      [&](comm::World& world) {
        RankState rank(world, layout);
        const auto optimizer = make_optimizer(config, rank.shards, {rank.parameters, rank.mesh});
        for (int64_t t = 1; t <= steps; ++t) {
          rank.set_gradients(t, 4);  // the gradient scale reverts it
          optimizer->step(t, rate_of(t), 0.25);
        }
        for (memory::Shard& shard : rank.shards)
          for (const memory::Piece& piece : shard.pieces()) {
            const at::Tensor& logical = want.at(piece.parameter->name).w;
            for_blocks(rank.mesh.coordinates(), piece, shard.lease()->values, logical,
                       [&](const at::Tensor& mine, const at::Tensor& whole) {
                         test::expect_within(mine.contiguous(), whole.contiguous(),
                                             1e-12 * std::max(1.0, logical.abs().max().item<double>()),
                                             concat(piece.parameter->name, " under ", to_string(layout)));
                       });
          }
      },
      options);
}

/// Runs kSteps under every layout, and kManySteps under the simplest layout and under one with every kind of sharding.
inline void expect_follows(const OptimizerConfig& config, const Formula& formula) {
  const auto soon = plain_trajectory(formula, kSteps), late = plain_trajectory(formula, kManySteps);
  for (const Layout& layout : layouts()) EXPECT_NO_THROW(expect_trajectory(config, soon, layout)) << to_string(layout);
  for (const Layout& layout : {Layout{}, Layout{2, 2, true}})
    EXPECT_NO_THROW(expect_trajectory(config, late, layout, kManySteps)) << to_string(layout);
}

/// Checks that a rule with sums over ranks gives wrong results without its collectives.
inline void expect_needs_its_collectives(const OptimizerConfig& config, const Formula& formula) {
  const auto want = plain_trajectory(formula, kSteps);
  for (const Layout& layout : {Layout{2, 1, true}, Layout{1, 2, false}})
    EXPECT_THROW(expect_trajectory(config, want, layout, kSteps, {.collectives_off = true}), test::ParityError)
        << to_string(layout);
}

}  // namespace colossal::optim
