#include "colossal/fold/fold_input.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/protein/residues.h"

namespace colossal::fold {
namespace {

/// The residues of a batch.
struct LinkedResidues {
  std::vector<int64_t> types, numbers, kept;
};

LinkedResidues linked(const std::vector<std::string>& chains) {
  LinkedResidues residues;
  const auto add = [&](int64_t type, size_t chain) {
    residues.numbers.push_back(static_cast<int64_t>(residues.types.size()) +
                               static_cast<int64_t>(chain) * kChainOffset);
    residues.types.push_back(type);
  };
  for (size_t chain = 0; chain < chains.size(); ++chain) {
    for (int64_t i = 0; chain > 0 && i < kLinkerResidues; ++i) add(protein::type_of_letter('G'), chain - 1);
    for (const char letter : chains[chain]) {
      residues.kept.push_back(static_cast<int64_t>(residues.types.size()));
      add(protein::type_of_letter(letter), chain);
    }
  }
  return residues;
}

}  // namespace

void FoldOptions::check() const {
  require(!passes || *passes >= 1, "fold", "passes must be at least 1: got ", passes.value_or(0),
          "; leave it out to run the model as often as it was trained to");
  require(tolerance >= 0 && std::isfinite(tolerance), "fold", "tolerance must be 0 or more Angstrom: got ", tolerance);
}

void check_sequence(const Sequence& sequence, const models::ModelShape& shape, const std::string& place) {
  const models::FoldingSizes model = models::folding_of(shape);
  require(sequence.chains.size() == 1 || model.folds_complexes, "fold", place,
          "a complex needs a model of several chains: got ", sequence.chains.size(), " chains of ", sequence.name,
          " and ", shape.architecture->name, "; name ESMFold or a multimer, or give each chain a record of its own");
  const bool is_known = std::any_of(sequence.chains.begin(), sequence.chains.end(), [](const std::string& chain) {
    return std::any_of(chain.begin(), chain.end(),
                       [](char letter) { return protein::type_of_letter(letter) != protein::kUnknownType; });
  });
  require(is_known, "fold", place,
          "a sequence must have at least one residue of the 20 types, because X gets no atoms: "
          "got none in ",
          sequence.name, "; give its residues or remove it");
}

FoldInput sequence_input(const Sequence& sequence, const models::ModelShape& shape) {
  check_sequence(sequence, shape);
  require(!models::folding_of(shape).reads_alignments, "fold", "a model of alignments needs their features: got ",
          shape.architecture->name, " and the sequence of ", sequence.name, " alone");
  LinkedResidues residues = linked(sequence.chains);
  FoldInput input{.sequence = sequence, .sizes = {.residues = static_cast<int64_t>(residues.types.size())}};
  input.kept = residues.kept;
  input.fields = [residues = std::move(residues)](int64_t, uint64_t) {
    using tensor::Dim;
    tensor::Batch batch;
    batch.add("aatype", {at::tensor(residues.types, at::kLong).unsqueeze(0), {Dim::Row, Dim::Other}});
    batch.add("residue_index", {at::tensor(residues.numbers, at::kLong).unsqueeze(0), {Dim::Row, Dim::Other}});
    batch.add("seq_mask", {at::ones({1, static_cast<int64_t>(residues.types.size())}), {Dim::Row, Dim::Other}});
    return batch;
  };
  return input;
}

}  // namespace colossal::fold
