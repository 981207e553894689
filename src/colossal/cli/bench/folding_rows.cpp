#include "colossal/cli/bench/folding_rows.h"

#include <ATen/ATen.h>

#include <functional>

#include "colossal/base/error.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/models/esmfold_block.h"
#include "colossal/models/evoformer_block.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/tensor_layers.h"

namespace colossal::cli {
namespace {

using comm::Phase;

/// Runs a block of one rank on shapes, forward and backward.
using RankOfBlock = std::function<void(parallel::TensorLayers& make, comm::Traffic& traffic)>;

/// Sets the phase of what is sent, and runs backward from both results.
void run_phases(comm::Traffic& traffic, const std::function<std::pair<at::Tensor, at::Tensor>()>& forward) {
  std::pair<at::Tensor, at::Tensor> out;
  {
    const comm::PhaseScope phase(traffic, Phase::Forward);
    out = forward();
  }
  const comm::PhaseScope phase(traffic, Phase::Backward);
  (out.first.sum() + out.second.sum()).backward();
}

at::Tensor leaf(const std::vector<int64_t>& sizes) {
  return at::empty(sizes, at::TensorOptions(at::kMeta)).requires_grad_();
}

RankOfBlock alphafold2_block(const FoldingWork& work) {
  return [work](parallel::TensorLayers& make, comm::Traffic& traffic) {
    const models::EvoformerSizes sizes;
    const models::EvoformerBlock block(make, "block", sizes);
    const auto ranks = make.axial_ranks();
    const at::Tensor m = leaf({1, ranks->own(work.alignment).size, work.residues, sizes.alignment}),
                     z = leaf({1, ranks->own(work.residues).size, work.residues, sizes.pair});
    run_phases(traffic, [&] {
      const models::Evoformer out = block.forward({m, z}, {.rows = work.alignment}, {});
      return std::pair(out.m, out.z);
    });
  };
}

RankOfBlock esmfold_block(const FoldingWork& work) {
  return [work](parallel::TensorLayers& make, comm::Traffic& traffic) {
    const models::EsmFoldSizes sizes;
    const models::EsmFoldBlock block(make, "block", sizes);
    const at::Tensor s = leaf({1, work.residues, sizes.sequence}),
                     z = leaf({1, make.axial_ranks()->own(work.residues).size, work.residues, sizes.pair});
    run_phases(traffic, [&] {
      const models::EsmFoldTrunk out = block.forward({s, z}, {}, {});
      return std::pair(out.s, out.z);
    });
  };
}

/// Returns what a switch of `each` elements for each pair of indices sends: all but what ranks keep.
int64_t of_switch(int64_t ranks, int64_t from, int64_t to, int64_t each) {
  const std::vector<int64_t> held = nn::near_even_cut(from, ranks).lengths,
                             taken = nn::near_even_cut(to, ranks).lengths;
  int64_t kept = 0;
  for (size_t rank = 0; rank < held.size(); ++rank) kept += held[rank] * taken[rank];
  return (from * to - kept) * each;
}

int64_t alphafold2_formula(int64_t p, const FoldingWork& w) {
  const models::EvoformerSizes c;
  const int64_t s = w.alignment, n = w.residues,
                gathered = (c.rows.heads + 2 * c.edges.heads) * n * n + c.outer * s * n + 2 * c.triangle * n * n;
  return 2 * of_switch(p, s, n, c.alignment) + 2 * of_switch(p, n, n, c.pair) + (p - 1) * gathered;
}

int64_t esmfold_formula(int64_t p, const FoldingWork& w) {
  const models::EsmFoldSizes c;
  const int64_t n = w.residues, gathered = c.sequence * n + 2 * (c.pair / c.pair_width) * n * n + 2 * c.pair * n * n;
  return 2 * of_switch(p, n, n, c.pair) + (p - 1) * gathered;
}

}  // namespace

std::vector<FoldingRow> folding_rows(int64_t ranks, const FoldingWork& work) {
  require(work.residues >= ranks, "parallel", "each of the ", ranks,
          " ranks of parallel.sequence must have a residue: got ", work.residues, " residues; use fewer ranks");
  std::vector<FoldingRow> rows;
  const auto add = [&](const char* what, const RankOfBlock& block, int64_t formula) {
    double forward = 0, backward = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto world = comm::make_simulated_world(static_cast<int>(rank), static_cast<int>(ranks));
      const parallel::SequenceConfig config{.size = ranks, .mode = "axial"};
      comm::Mesh mesh(*world, parallel::sequence_axes(config));
      nn::Parameters parameters(mesh.coordinates(), {.device = at::kMeta, .without_memory = true});
      parallel::TensorLayers make(parameters, parallel::with_sequence(parallel::make_layout({}, mesh), config));
      block(make, world->traffic());
      forward += world->traffic().total("", "", Phase::Forward).elements;
      backward += world->traffic().total("", "", Phase::Backward).elements;
    }
    rows.push_back({ranks, what, "forward", static_cast<int64_t>(forward + .5), formula});
    rows.push_back({ranks, what, "backward", static_cast<int64_t>(backward + .5), formula});
  };
  add("alphafold2", alphafold2_block(work), alphafold2_formula(ranks, work));
  add("esmfold", esmfold_block(work), esmfold_formula(ranks, work));
  return rows;
}

}  // namespace colossal::cli
