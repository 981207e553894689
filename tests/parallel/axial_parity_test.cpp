// Blocks of folding models whose representations ranks cut, against one process in fp64: results, gradients, dropout,
// inference in place, and what they send.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/memory/account.h"
#include "colossal/models/esmfold_block.h"
#include "colossal/models/evoformer_block.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::axial_parity_test {
namespace {

using comm::Phase;
using models::EsmFoldBlock, models::EvoformerBlock, models::EvoformerMasks, models::EvoformerSizes;

at::Tensor random(const std::vector<int64_t>& sizes, const std::string& name) {
  return at::randn(sizes, at::detail::createCPUGenerator(derive_seed(5, name)), at::kDouble);
}

/// The layers of a rank among which mode axial cuts.
struct Rank {
  Rank(comm::World& world, bool overlap, nn::Parameters::Options options = {.dtype = at::kDouble})
      : config{.size = world.size(), .mode = "axial", .overlap = overlap},
        mesh(world, parallel::sequence_axes(config)),
        parameters(mesh.coordinates(), options),
        make(parameters, parallel::with_sequence(parallel::make_layout({}, mesh), config)),
        ranks(make.axial_ranks()) {}

  parallel::SequenceConfig config;
  comm::Mesh mesh;
  nn::Parameters parameters;
  parallel::TensorLayers make;
  std::shared_ptr<const nn::AxialRanks> ranks;
};

/// Gives parameters values that depend on their names, because layers that start at 0 would hide their inputs.
void fill(nn::Parameters& parameters) {
  const at::NoGradGuard no_grad;
  for (nn::Parameter& p : parameters)
    p.value.copy_(.3 * random(p.spec.shape, p.name) + (p.name.find("norm") != std::string::npos ? 1 : 0));
}

/// A block as a function of two representations, cut for the rank or whole.
using Block = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&, const nn::ForwardContext&)>;

struct Case {
  std::string name;
  std::vector<std::vector<int64_t>> sizes;  ///< of the two representations
  std::vector<bool> is_cut;                 ///< whether ranks cut their dimension 1
  std::function<Block(nn::Layers&)> make;
};

/// Returns a mask [sizes] with a padded residue and some gaps.
at::Tensor mask_of(std::vector<int64_t> sizes, const std::string& name) {
  return random(sizes, name).gt(-1).to(at::kDouble);
}

Case evoformer(int64_t rows, int64_t n, EvoformerSizes sizes) {
  sizes.alignment = 8, sizes.pair = 6, sizes.rows = sizes.edges = {.heads = 2, .width = 4};
  sizes.outer = 3, sizes.triangle = 4;
  return {concat("Evoformer of ", rows, " rows, ", n, " residues"),
          {{2, rows, n, 8}, {2, n, n, 6}},
          {true, true},
          [=](nn::Layers& make) -> Block {
            const EvoformerMasks masks{
                .alignment = mask_of({2, rows, n}, "rows"), .pair = mask_of({2, n, n}, "pairs"), .rows = rows};
            return [=, block = std::make_shared<EvoformerBlock>(make, "x", sizes)](const auto& in, const auto& step) {
              const models::Evoformer out = block->forward({in[0], in[1]}, masks, step);
              return std::vector<at::Tensor>{out.m, out.z};
            };
          }};
}

Case esmfold(int64_t n) {
  return {
      concat("ESMFold of ", n, " residues"), {{2, n, 8}, {2, n, n, 6}}, {false, true}, [=](nn::Layers& make) -> Block {
        const models::EsmFoldSizes sizes{.sequence = 8, .pair = 6, .sequence_width = 4, .pair_width = 3, .dropout = .1};
        const at::Tensor mask = mask_of({2, n}, "residues");
        return [=, block = std::make_shared<EsmFoldBlock>(make, "x", sizes)](const auto& in, const auto& step) {
          const models::EsmFoldTrunk out = block->forward({in[0], in[1]}, mask, step);
          return std::vector<at::Tensor>{out.s, out.z};
        };
      }};
}

std::vector<at::Tensor> inputs_of(const Case& c, const std::string& what) {
  return {random(c.sizes[0], what + "0"), random(c.sizes[1], what + "1")};
}

/// Results and gradients of one process.
struct Whole {
  explicit Whole(const Case& c) : parameters({}, {.dtype = at::kDouble}) {
    nn::SerialLayers make(parameters);
    const Block block = c.make(make);
    fill(parameters);
    step.training = true, step.dropout_seed = 3, step.first_row = 4;
    const std::vector<at::Tensor> x = inputs_of(c, "x"), dy = inputs_of(c, "dy");
    for (const at::Tensor& leaf : x) in.push_back(leaf.clone().requires_grad_());
    out = block(in, step);
    (out[0].mul(dy[0]).sum() + out[1].mul(dy[1]).sum()).backward();
    const at::NoGradGuard no_grad;
    inferred = block({x[0].clone(), x[1].clone()}, {});
  }
  nn::Parameters parameters;
  nn::ForwardContext step;
  std::vector<at::Tensor> in, out, inferred;
};

void expect_rank_of(const Case& c, Whole& whole, comm::World& world, bool overlap) {
  Rank rank(world, overlap);
  const Block block = c.make(rank.make);
  fill(rank.parameters);
  const auto own = [&](const at::Tensor& t, size_t i) { return c.is_cut[i] ? rank.ranks->part(t, 1) : t; };
  const std::vector<at::Tensor> x = inputs_of(c, "x"), dy = inputs_of(c, "dy");
  std::vector<at::Tensor> leaves, copies;
  for (size_t i = 0; i < 2; ++i) leaves.push_back(own(x[i], i).clone().requires_grad_());
  const std::vector<at::Tensor> y = block(leaves, whole.step);
  // What every rank has counts once, as for a loss that each computes of its rows.
  const double of_whole = c.is_cut[0] ? 1 : 1. / world.size();
  (y[0].mul(own(dy[0], 0)).sum() * of_whole + y[1].mul(own(dy[1], 1)).sum()).backward();
  for (size_t i = 0; i < 2; ++i) {
    expect_within(y[i], own(whole.out[i], i), 1e-12, concat(c.name, ": result ", i));
    at::Tensor gradient = leaves[i].grad();
    if (!c.is_cut[i]) rank.mesh.all().all_reduce(gradient, comm::Reduce::Sum).wait();
    expect_within(gradient, own(whole.in[i].grad(), i), 1e-10, concat(c.name, ": gradient ", i));
  }
  for (const nn::Parameter& p : rank.parameters) {
    at::Tensor sum = p.value.grad().clone();
    rank.mesh.all().all_reduce(sum, comm::Reduce::Sum).wait();
    expect_within(sum, whole.parameters.at(p.name).value.grad(), 1e-10, concat(c.name, ": ", p.name));
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < 2; ++i) copies.push_back(own(x[i], i).clone());
  const std::vector<at::Tensor> inferred = block(copies, {});
  for (size_t i = 0; i < 2; ++i)
    expect_within(inferred[i], own(whole.inferred[i], i), 1e-12, concat(c.name, ": inference ", i));
}

TEST(AxialParity, LetsBlocksEqualOneProcess) {
  for (const Case& c : {evoformer(5, 13, {}), evoformer(3, 8, {.outer_first = true, .fused = true}),
                        evoformer(2, 7, {.global = true}), esmfold(13), esmfold(8)}) {
    Whole whole(c);
    for (const int ranks : {1, 2, 3, 4})
      comm::run_ranks(ranks, [&](comm::World& world) { expect_rank_of(c, whole, world, ranks % 2 == 0); });
  }
}

TEST(AxialParity, GivesTheSameBitsWithoutOverlap) {
  const Case c = evoformer(5, 7, {});
  std::vector<at::Tensor> results[2];
  for (const bool overlap : {false, true}) {
    std::mutex mutex;
    comm::run_ranks(3, [&](comm::World& world) {
      Rank rank(world, overlap);
      const Block block = c.make(rank.make);
      fill(rank.parameters);
      std::vector<at::Tensor> in;
      for (const at::Tensor& x : inputs_of(c, "x")) in.push_back(rank.ranks->part(x, 1).clone().requires_grad_());
      std::vector<at::Tensor> out = block(in, {});
      (out[0].square().sum() + out[1].square().sum()).backward();
      const std::lock_guard lock(mutex);
      if (world.rank() == 1) results[overlap] = {out[0].detach(), out[1].detach(), in[0].grad(), in[1].grad()};
    });
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
}

/// Returns the elements that all ranks together send for a block, in both phases.
std::pair<double, double> sent_by_all(const Case& c, int ranks) {
  std::pair<double, double> sent;
  comm::run_ranks(ranks, [&](comm::World& world) {
    Rank rank(world, true);
    const Block block = c.make(rank.make);
    std::vector<at::Tensor> in;
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor x = at::zeros(c.sizes[i], at::kDouble);
      in.push_back((c.is_cut[i] ? rank.ranks->part(x, 1) : x).clone().requires_grad_());
    }
    world.traffic().reset();
    std::vector<at::Tensor> out;
    {
      const comm::PhaseScope phase(world.traffic(), Phase::Forward);
      out = block(in, {});
    }
    {
      const comm::PhaseScope phase(world.traffic(), Phase::Backward);
      (out[0].sum() + out[1].sum()).backward();
    }
    const double forward = world.traffic().total("", "", Phase::Forward).elements,
                 backward = world.traffic().total("", "", Phase::Backward).elements;
    const double all_forward = comm::sum(rank.mesh.all(), forward), all_backward = comm::sum(rank.mesh.all(), backward);
    if (world.rank() == 0) sent = {all_forward, all_backward};
  });
  return sent;
}

TEST(AxialParity, SendsWhatTheFormulaSays) {
  for (const int p : {1, 2, 4}) {
    // Batch 2, S 4, N 8: heads 2 of rows and of edges, outer 3, triangle 4.
    const double m = 2 * 4 * 8 * 8, z = 2 * 8 * 8 * 6, pairs = 2 * 8 * 8, s = 2 * 8 * 8;
    const double evoformer_formula =
        (p - 1.) / p * (2 * m + 2 * z) + (p - 1.) * (6 * pairs + 3 * 2 * 4 * 8 + 2 * 4 * pairs);
    EXPECT_EQ(sent_by_all(evoformer(4, 8, {}), p), std::make_pair(evoformer_formula, evoformer_formula)) << p;
    const double esmfold_formula = (p - 1.) / p * 2 * z + (p - 1.) * (s + 2 * 2 * pairs + 2 * z);
    EXPECT_EQ(sent_by_all(esmfold(8), p), std::make_pair(esmfold_formula, esmfold_formula)) << p;
  }
}

TEST(AxialParity, CountsAPublishedBlockOnShapes) {
  const auto sent = [](int ranks, int64_t rows, int64_t n) {
    const auto world = comm::make_simulated_world(0, ranks);
    Rank rank(*world, true, {.dtype = at::kFloat, .device = at::kMeta});
    const EvoformerBlock block(rank.make, "x", {});
    const at::TensorOptions meta = at::TensorOptions(at::kMeta);
    block.forward({at::empty({1, rows / ranks, n, 256}, meta), at::empty({1, n / ranks, n, 128}, meta)}, {.rows = rows},
                  {});
    return world->traffic().total().elements * ranks;
  };
  EXPECT_EQ(sent(2, 128, 256), 35'651'584.0);
  EXPECT_EQ(sent(4, 512, 384), 243'007'488.0);
}

TEST(AxialParity, SwitchesPairsWithinThriceTheirMemory) {
  const auto world = comm::make_simulated_world(0, 4);
  Rank rank(*world, true, {.dtype = at::kFloat, .device = at::kMeta});
  const at::NoGradGuard no_grad;
  const memory::Account account(memory::Counted::Shapes);
  at::Tensor z = at::empty({2, 64, 16, 8}, at::TensorOptions(at::kMeta));
  const auto own = static_cast<int64_t>(z.nbytes());
  z = rank.ranks->switched(z, {2, 64, "columns"}, {1, 64, "rows"});
  EXPECT_EQ(z.sizes(), (std::vector<int64_t>{2, 16, 64, 8}));
  EXPECT_LE(account.usage().peak_total, 3 * own);
}

TEST(AxialParity, RefusesOverlapInOtherModes) {
  EXPECT_THAT(thrown_message([] { parallel::sequence_axes({.size = 2, .mode = "ring", .overlap = false}); }),
              testing::HasSubstr("sequence.overlap = false needs mode axial: got mode ring"));
}

}  // namespace
}  // namespace colossal::test::axial_parity_test
