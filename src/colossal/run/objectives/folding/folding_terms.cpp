#include "colossal/run/objectives/folding/folding_terms.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <vector>

#include "colossal/models/folding/residue_tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/run/objectives/folding/fape.h"
#include "colossal/run/objectives/folding/losses.h"
#include "colossal/run/objectives/folding/violations.h"

namespace colossal::run {
namespace {

constexpr int64_t kCaSlot = 1;

/// The true atoms of a batch, in the dtype in which losses are computed.
struct TrueChains {
  at::Tensor types, residues;     // [B, N]; residues: 0 = padding
  at::Tensor atoms37, mask37;     // [B, N, 37, 3], [B, N, 37]
  ops::Rigid backbones;           // [B, N]
  at::Tensor backbone_mask;       // [B, N]
  at::Tensor ca, ca_mask;         // [B, N, 3], [B, N]
  at::Tensor is_resolved_enough;  // [B]
};

/// Returns the numbers of a label on the device and in the dtype of `like`.
at::Tensor as_numbers(const tensor::Batch& batch, const char* name, const at::Tensor& like) {
  return batch.at(name).to(like.device(), /*non_blocking=*/true).to(like.scalar_type());
}

TrueChains true_chains(const tensor::Batch& batch, const at::Tensor& like, const ops::ResidueTables& tables) {
  TrueChains truth{.types = batch.at("aatype").to(like.device()), .residues = as_numbers(batch, "seq_mask", like)};
  truth.atoms37 = as_numbers(batch, "all_atom_positions", like);
  truth.mask37 = as_numbers(batch, "all_atom_mask", like) * truth.residues.unsqueeze(-1);
  const ops::GroupFrames groups = ops::frames_of_atoms(truth.atoms37, truth.mask37, truth.types, tables);
  const ops::Rigid first = groups.frames.narrow(-1, 0, 1);
  truth.backbones = {first.rotation.squeeze(2), first.translation.squeeze(2)};
  truth.backbone_mask = groups.mask.select(-1, 0);
  truth.ca = truth.atoms37.select(2, kCaSlot);
  truth.ca_mask = truth.mask37.select(2, kCaSlot);
  truth.is_resolved_enough = well_resolved(as_numbers(batch, "resolution", like));
  return truth;
}

/// Returns x [B, ...] once for each of `layers`: [B layers, ...].
at::Tensor for_layers(const at::Tensor& x, int64_t layers) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin() + 1, layers);
  return x.unsqueeze(1).expand(sizes).flatten(0, 1);
}

at::Tensor wide(const at::Tensor& x) { return x.to(ops::wide_type(x)); }

const at::Tensor& state_of(const models::States& end, int index) { return end.at(static_cast<size_t>(index)); }

/// Returns the errors of CA in the backbones of each layer, [B, L].
at::Tensor backbone_losses(const at::Tensor& frames, const TrueChains& truth, double clamp) {
  const int64_t rows = frames.size(0), layers = frames.size(1);
  const at::Tensor flat = frames.flatten(0, 1);  // [B L, N, 7]
  const ops::QuaternionFrames each{flat.narrow(-1, 0, 4), flat.narrow(-1, 4, 3)};
  const ComparedFrames compared{
      .predicted = each.rigid(),
      .truth = {for_layers(truth.backbones.rotation, layers), for_layers(truth.backbones.translation, layers)},
      .mask = for_layers(truth.backbone_mask, layers)};
  const ComparedPoints points{
      .predicted = each.translation, .truth = for_layers(truth.ca, layers), .mask = for_layers(truth.ca_mask, layers)};
  return fape_losses(compared, points, {.clamp = clamp}).view({rows, layers});
}

/// Returns the losses of angles, the mean over layers.
at::Tensor chi_term(const at::Tensor& raw, const TrueChains& truth, const ops::ResidueTables& tables) {
  const int64_t layers = raw.size(1);
  const ops::Torsions torsions = ops::torsions_of(truth.atoms37, truth.mask37, truth.types, tables);
  constexpr int64_t kFirstChi = ops::kTorsions - ops::kChis;
  const TrueChis chis{.sin_cos = for_layers(torsions.sin_cos.narrow(2, kFirstChi, ops::kChis), layers),
                      .mask = for_layers(torsions.mask.narrow(2, kFirstChi, ops::kChis), layers)};
  return chi_losses(raw.flatten(0, 1), chis, for_layers(truth.residues, layers), for_layers(truth.types, layers),
                    tables)
      .view({raw.size(0), layers})
      .mean(1);
}

/// The terms of all heads and of the last layer.
class TermsOfEnd {
 public:
  TermsOfEnd(const models::FoldingHeads& heads, const models::States& end, const tensor::Batch& batch)
      : heads_(heads),
        end_(end),
        batch_(batch),
        like_(state_of(end, heads.frames)),
        tables_(models::residue_tables(like_.options())),
        truth_(true_chains(batch, like_, tables_)) {}

  FoldingTerms all(const FoldingLoss& loss) {
    const FoldingWeights weights = weights_for(loss.weights, heads_);
    const at::Tensor clamped = backbone_losses(like_, truth_, kClamp);
    FoldingTerms terms{.fape = clamped.detach().select(1, -1), .lddt_ca = lddt().chains};
    // Terms of residues are the same on all ranks that cut the pairs, so each of them adds its share; the others are
    // sums over the rows of the rank.
    at::Tensor sum = at::zeros_like(terms.fape);
    const double share = 1 / static_cast<double>(heads_.ranks->size());
    const auto add = [&](double weight, const auto& term) {
      if (weight > 0) sum = sum + weight * share * term();
    };
    const auto add_rows = [&](double weight, const auto& term) {
      if (weight > 0) sum = sum + weight * term();
    };
    add(weights.fape, [&] {
      if (loss.clamp == 1) return clamped.mean(1);
      const at::Tensor unclamped = backbone_losses(like_, truth_, /*clamp=*/0);
      return loss.clamp * clamped.mean(1) + (1 - loss.clamp) * unclamped.mean(1);
    });
    add(weights.side_chains, [&] { return side_chains(); });
    add(weights.chi, [&] { return chi_term(state_of(end_, heads_.angles), truth_, tables_); });
    add_rows(weights.distogram, [&] { return distogram(); });
    add_rows(weights.masked_msa, [&] { return letters(); });
    add(weights.plddt, [&] { return confidence() * truth_.is_resolved_enough; });
    add_rows(weights.pae, [&] { return errors() * truth_.is_resolved_enough; });
    add(weights.resolved, [&] { return resolved() * truth_.is_resolved_enough; });
    add(weights.violation, [&] { return violation(); });
    terms.losses = heads_.ranks->total(sum) * truth_.residues.sum(1).sqrt();
    return terms;
  }

 private:
  static constexpr double kClamp = 10;

  int64_t first_pair_row() const { return heads_.ranks->own(truth_.types.size(1)).first; }

  const models::FoldedAtoms& atoms() {
    if (!atoms_.positions14.defined()) atoms_ = models::folded_atoms(heads_, end_, truth_.types);
    return atoms_;
  }

  Lddt lddt() const {
    const at::NoGradGuard no_grad;
    return lddt_of(like_.select(1, -1).narrow(-1, 4, 3), truth_.ca, truth_.ca_mask);
  }

  at::Tensor side_chains() {
    const SideChains named = side_chains_of(truth_.atoms37, truth_.mask37, truth_.types, tables_);
    const SideChains truth = better_named(named, atoms().positions14, truth_.types, tables_);
    return side_chain_fape_losses(atoms().groups, atoms().positions14, truth, {.clamp = kClamp});
  }

  at::Tensor distogram() const {
    const at::Tensor& z = state_of(end_, heads_.pair);
    const ops::MaskedPoints points = ops::side_chain_points(truth_.atoms37, truth_.mask37, truth_.types, tables_);
    return distogram_losses(wide(heads_.distogram(z, heads_.ranks->mirrored(z))), points.positions, points.mask,
                            first_pair_row());
  }

  at::Tensor letters() const {
    const at::Tensor& m = state_of(end_, heads_.alignment);
    const at::Tensor chosen = as_numbers(batch_, "bert_mask", like_) * truth_.residues.unsqueeze(1);
    return masked_msa_losses(wide(heads_.letters(m)), batch_.at("true_msa").to(like_.device()), chosen,
                             models::own_rows(heads_, batch_).first);
  }

  at::Tensor confidence() const {
    const at::Tensor logits = wide(heads_.lddt(state_of(end_, heads_.structure)));  // [B, N, 1 or 37, bins]
    const at::Tensor of_ca = logits.select(2, logits.size(2) == 1 ? 0 : kCaSlot);
    return plddt_losses(of_ca, lddt().residues, truth_.ca_mask);
  }

  at::Tensor errors() const {
    const at::Tensor last = like_.select(1, -1);
    const ops::QuaternionFrames frames{last.narrow(-1, 0, 4), last.narrow(-1, 4, 3)};
    return pae_losses(wide(heads_.errors(state_of(end_, heads_.pair))), frames.rigid(), truth_.backbones,
                      truth_.backbone_mask, first_pair_row());
  }

  at::Tensor resolved() const {
    const at::Tensor exists = ops::residue_rows(tables_.mask37, truth_.types) * truth_.residues.unsqueeze(-1);
    return resolved_losses(wide(heads_.resolved(state_of(end_, heads_.unfolded))), truth_.mask37, exists);
  }

  at::Tensor violation() {
    const PredictedChain chain{
        .places = atoms().positions14,
        .exists = ops::residue_rows(tables_.mask14, truth_.types) * truth_.residues.unsqueeze(-1),
        .types = truth_.types,
        .index = batch_.at("residue_index").to(like_.device())};
    return violation_losses(chain, tables_);
  }

  const models::FoldingHeads& heads_;
  const models::States& end_;
  const tensor::Batch& batch_;
  const at::Tensor& like_;  // the frames of all layers
  ops::ResidueTables tables_;
  TrueChains truth_;
  models::FoldedAtoms atoms_{};
};

}  // namespace

FoldingWeights weights_for(FoldingWeights weights, const models::FoldingHeads& heads) {
  if (weights.masked_msa < 0) weights.masked_msa = heads.letters ? 2 : 0;
  if (weights.pae < 0) weights.pae = heads.errors ? .1 : 0;
  return weights;
}

std::string missing_head(const FoldingWeights& weights, const models::FoldingHeads& heads) {
  if (weights.masked_msa > 0 && !heads.letters) return "a head of letters, for folding.weights.masked_msa";
  if (weights.pae > 0 && !heads.errors) return "a head of errors, for folding.weights.pae";
  if (weights.resolved > 0 && !heads.resolved) return "a head of resolved atoms, for folding.weights.resolved";
  return "";
}

FoldingTerms folding_terms(const models::FoldingHeads& heads, const models::States& end, const tensor::Batch& batch,
                           const FoldingLoss& loss) {
  return TermsOfEnd(heads, end, batch).all(loss);
}

}  // namespace colossal::run
