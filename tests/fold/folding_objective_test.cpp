// The terms of the loss of chains, against the functions of each on a chain without padding; and what is refused.
#include "colossal/run/objectives/folding/folding_objective.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

#include "colossal/data/folding/drawn_fold_samples.h"
#include "colossal/models/folding/residue_tables.h"
#include "colossal/models/folding/structure_module.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/run/objectives/folding/fape.h"
#include "colossal/run/objectives/folding/losses.h"
#include "colossal/run/objectives/folding/violations.h"
#include "fold/folding_runs.h"
#include "support/thrown_message.h"

namespace colossal::fold::folding_objective_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kN = 9, kS = 3, kLayers = 2;
enum State { Pair, Alignment, Structure, Unfolded, Frames, Angles };

at::Tensor waves(double a, at::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(count, at::kDouble).mul(a).cos().view(sizes);
}

/// A model that ends in given states, whose heads add constant waves.
struct Ended {
  models::FoldingHeads heads{.pair = Pair,
                             .alignment = Alignment,
                             .structure = Structure,
                             .unfolded = Unfolded,
                             .frames = Frames,
                             .angles = Angles};
  models::States end;
  tensor::Batch batch;

  Ended() {
    const data::DrawnFoldSamples samples({.sizes = {.residues = kN, .clusters = kS, .extra = 1}, .masked = .4});
    batch = samples.make(1);
    samples.fill(0, 5, batch, 0);
    batch = batch.map(
        [](const tensor::Field& f) { return f.tensor.is_floating_point() ? f.tensor.to(at::kDouble) : f.tensor; });
    const at::Tensor turn = waves(.3, {1, kLayers, kN, 4}), places = 9 * waves(.7, {1, kLayers, kN, 3});
    end = {waves(.37, {1, kN, kN, 64}),
           waves(.29, {1, kS, kN, 23}),
           waves(.23, {1, kN, 50}),
           waves(.19, {1, kN, 37}),
           at::cat({turn / turn.norm(2, -1, true), places}, -1),
           waves(.53, {1, kLayers, kN, 7, 2})};
    heads.lddt = [](const at::Tensor& s) { return s.unsqueeze(2); };
    heads.distogram = [](const at::Tensor& rows, const at::Tensor& mirrored) { return rows + mirrored; };
    heads.errors = [](const at::Tensor& rows) { return rows; };
    heads.letters = [](const at::Tensor& m) { return m; };
    heads.resolved = [](const at::Tensor& s) { return s; };
  }
  /// Returns the loss with that weight alone, without the factor of the chain's length.
  double term(double run::FoldingWeights::* weight) const {
    run::FoldingLoss loss{
        .weights = {.fape = 0, .side_chains = 0, .chi = 0, .distogram = 0, .masked_msa = 0, .plddt = 0, .pae = 0},
        .clamp = .8};
    loss.weights.*weight = 2;
    return run::folding_terms(heads, end, batch, loss).losses.item<double>() / 2 / std::sqrt(kN);
  }
};

TEST(FoldingTerms, EqualTheLossesOfEachHead) {
  const Ended m;
  using W = run::FoldingWeights;
  const at::Tensor &types = m.batch.at("aatype"), &atoms = m.batch.at("all_atom_positions"),
                   &mask = m.batch.at("all_atom_mask");
  const ops::ResidueTables tables = models::residue_tables(atoms.options());
  const ops::GroupFrames groups = ops::frames_of_atoms(atoms, mask, types, tables);
  const ops::Rigid first = groups.frames.narrow(-1, 0, 1),
                   truth{first.rotation.squeeze(2), first.translation.squeeze(2)};
  const at::Tensor all = at::ones({1, kN}, at::kDouble), ca = atoms.select(2, 1);
  const auto backbone = [&](int64_t layer, double clamp) {
    const at::Tensor frames = m.end[Frames].select(1, layer);
    const ops::QuaternionFrames here{frames.narrow(-1, 0, 4), frames.narrow(-1, 4, 3)};
    return run::fape_losses({here.rigid(), truth, all}, {here.translation, ca, all}, {.clamp = clamp}).item<double>();
  };
  EXPECT_NEAR(m.term(&W::fape), .4 * (backbone(0, 10) + backbone(1, 10)) + .1 * (backbone(0, 0) + backbone(1, 0)),
              1e-12);
  const models::FoldedAtoms folded = models::folded_atoms(m.heads, m.end, types);
  const run::SideChains sides =
      run::better_named(run::side_chains_of(atoms, mask, types, tables), folded.positions14, types, tables);
  EXPECT_NEAR(m.term(&W::side_chains),
              run::side_chain_fape_losses(folded.groups, folded.positions14, sides, {}).item<double>(), 1e-12);
  // Drawn folds have no chis, so only the lengths of the angles remain.
  double lengths = 0;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const at::Tensor norms = (m.end[Angles].select(1, layer).square().sum(-1) + 1e-6).sqrt();
    lengths += .01 * ((norms - 1).abs().sum() / (norms.numel() + 1e-4)).item<double>() / kLayers;
  }
  EXPECT_NEAR(m.term(&W::chi), lengths, 1e-12);
  const ops::MaskedPoints beta = ops::side_chain_points(atoms, mask, types, tables);
  const at::Tensor& z = m.end[Pair];
  EXPECT_NEAR(m.term(&W::distogram),
              run::distogram_losses(z + z.transpose(1, 2), beta.positions, beta.mask).item<double>(), 1e-12);
  EXPECT_NEAR(m.term(&W::masked_msa),
              run::masked_msa_losses(m.end[Alignment], m.batch.at("true_msa"), m.batch.at("bert_mask")).item<double>(),
              1e-12);
  const at::Tensor last = m.end[Frames].select(1, 1);
  const run::Lddt lddt = run::lddt_of(last.narrow(-1, 4, 3), ca, all);
  EXPECT_NEAR(m.term(&W::plddt), run::plddt_losses(m.end[Structure], lddt.residues, all).item<double>(), 1e-12);
  EXPECT_NEAR(m.term(&W::pae), run::pae_losses(z, folded.backbones, truth, all).item<double>(), 1e-12);
  EXPECT_NEAR(m.term(&W::resolved),
              run::resolved_losses(m.end[Unfolded], mask, ops::residue_rows(tables.mask37, types)).item<double>(),
              1e-12);
  const run::PredictedChain chain{.places = folded.positions14,
                                  .exists = ops::residue_rows(tables.mask14, types),
                                  .types = types,
                                  .index = m.batch.at("residue_index")};
  EXPECT_NEAR(m.term(&W::violation), run::violation_losses(chain, tables).item<double>(), 1e-10);
  const run::FoldingTerms terms = run::folding_terms(m.heads, m.end, m.batch, {});
  EXPECT_NEAR(terms.fape.item<double>(), backbone(1, 10), 1e-12);
  EXPECT_NEAR(terms.lddt_ca.item<double>(), lddt.chains.item<double>(), 1e-12);
}

TEST(FoldingTerms, LeaveOutChainsWithoutResolution) {
  Ended m;
  m.batch.at("resolution").fill_(0);
  using W = run::FoldingWeights;
  for (const auto weight : {&W::plddt, &W::pae, &W::resolved}) EXPECT_EQ(m.term(weight), 0);
  EXPECT_GT(m.term(&W::fape), 0);
}

TEST(FoldingTerms, TakeTheWeightsOfTheHeads) {
  Ended m;
  EXPECT_EQ(run::weights_for({}, m.heads).masked_msa, 2);
  EXPECT_EQ(run::weights_for({}, m.heads).pae, .1);
  m.heads.errors = nullptr, m.heads.letters = nullptr;
  EXPECT_EQ(run::weights_for({}, m.heads).masked_msa, 0);
  EXPECT_EQ(run::weights_for({}, m.heads).pae, 0);
  EXPECT_EQ(run::missing_head({}, m.heads), "");
  EXPECT_EQ(run::missing_head({.pae = .1}, m.heads), "a head of errors, for folding.weights.pae");
}

TEST(FoldingObjective, RefusesWhatItCannotLearn) {
  const auto message = [](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { test::run_course(folding_run(flags), folding_program(), 1); });
  };
  std::vector<std::string> none;
  for (const char* term : {"fape", "distogram", "side_chains", "chi", "plddt", "pae", "violation"})
    none.push_back(concat("--folding.weights.", term, "=0"));
  EXPECT_THAT(message(none), HasSubstr("[folding] a weight of folding.weights must be above 0: got 0 for all"));
  EXPECT_THAT(message({"--folding.weights.masked_msa=2"}),
              HasSubstr("needs a model with a head of letters, for folding.weights.masked_msa: got one without"));
  EXPECT_THAT(message({"--model.name=gpt2-tiny"}), HasSubstr("[fold] the model must fold proteins: got "));
}

}  // namespace
}  // namespace colossal::fold::folding_objective_test
