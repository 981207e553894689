// What a folding model reads of a chain or complex.
//
//   const fold::FoldInput input = fold::sequence_input({"one", {"MKTAYIAK"}}, shape);
//   const tensor::Batch row = input.fields(4, 1);                    // of four passes with seed 1
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/fold/fold.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/tensor/batch.h"

namespace colossal::fold {

inline constexpr int64_t kLinkerResidues = 25;  ///< glycines between two chains of a complex (Lin et al. 2023)
inline constexpr int64_t kChainOffset = 512;    ///< added to the numbers of residues of each further chain

struct FoldInput {
  Sequence sequence;
  models::FoldingBatch sizes{};        ///< of the batch, with residues between chains
  std::vector<int64_t> kept{};         ///< residues of the batch that are those of the chains, in order
  std::vector<std::string> notices{};  ///< for the user, about what was read
  /// Returns the fields that the model reads in so many passes, on the host, but for the recycled ones. Fields that
  /// differ from pass to pass may have a dimension for it (data::batch_of_pass()). They depend on the seed, the name of
  /// the chain and the pass alone.
  std::function<tensor::Batch(int64_t passes, uint64_t seed)> fields{};
};

/// Checks that a model of this shape can fold the chains. `place` begins the message, such as the line of a file; may
/// be empty. It needs no weights.
/// Errors ("fold"): a model that does not fold proteins; a complex, and a model of single chains; no known residue.
void check_sequence(const Sequence& sequence, const models::ModelShape& shape, const std::string& place = "");

/// Returns the input of a model that reads sequences alone. Between chains it puts glycines, which have the numbers
/// that follow the chain before them, and which results leave out.
/// Errors: those of check_sequence(); ("fold") a model that reads alignments.
FoldInput sequence_input(const Sequence& sequence, const models::ModelShape& shape);

}  // namespace colossal::fold
