#include "colossal/models/folding/alphafold_heads.h"

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <string>

#include "colossal/models/folding/residue_tables.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/activation.h"
#include "colossal/protein/residues.h"

namespace colossal::models {
namespace {

constexpr int64_t kResidueLddtBins = 50, kPairBins = 64, kHeadLetters = 23;

}  // namespace

void add_alphafold_heads(FoldingHeads& heads, const AlphaFoldHeadSizes& s, nn::Layers& make) {
  using Layer = std::shared_ptr<nn::Dense>;
  const auto last = [&](const std::string& name, int64_t in, int64_t out) -> Layer {
    return nn::silent_layer(make, name, in, out, true);
  };
  const auto inner = [&](const std::string& name, int64_t in, int64_t out) -> Layer {
    return make.dense(name, in, out, {.deviation = std::sqrt(2. / static_cast<double>(in))});
  };
  const std::shared_ptr<nn::Norm> norm = make.layer_norm("head.plddt.layer_norm", s.structure, {});
  const Layer first = inner("head.plddt.linear_1", s.structure, s.confidence),
              second = inner("head.plddt.linear_2", s.confidence, s.confidence),
              third = last("head.plddt.linear_3", s.confidence, kResidueLddtBins);
  heads.lddt = [=](const at::Tensor& structure) {
    const auto rectified = ops::activation("relu").plain;
    const at::Tensor x = rectified(second->forward(rectified(first->forward(norm->forward(structure)))));
    return third->forward(x).unsqueeze(2);
  };
  const Layer distances = last("head.distogram.linear", s.pair, kPairBins);
  heads.distogram = [=](const at::Tensor& rows, const at::Tensor& mirrored) {
    return distances->forward(rows) + distances->forward(mirrored);
  };
  const Layer letters = last("head.masked_msa.linear", s.alignment, kHeadLetters);
  heads.letters = [=](const at::Tensor& alignment) { return letters->forward(alignment); };
  const Layer resolved = last("head.experimentally_resolved.linear", s.structure, protein::kAtom37);
  heads.resolved = [=](const at::Tensor& unfolded) { return resolved->forward(unfolded); };
  if (s.errors) {
    const Layer errors = last("head.tm.linear", s.pair, kPairBins);
    heads.errors = [=](const at::Tensor& rows) { return errors->forward(rows); };
  }
  heads.beta = [](const at::Tensor& atoms37, const at::Tensor& types) {
    const ops::ResidueTables tables = residue_tables(atoms37.options());
    const at::Tensor exists = at::ones(atoms37.sizes().slice(0, atoms37.dim() - 1), atoms37.options());
    return ops::side_chain_points(atoms37, exists, types, tables).positions;
  };
}

}  // namespace colossal::models
