// Folds proteins with a trained or downloaded model, such as ESMFold: from the letters of chains to the places of
// atoms.
//
//   const auto world = colossal::comm::launch({});
//   const std::vector<colossal::fold::Sequence> sequences{{"one", {"MKTAYIAKQRQISFVK"}}};
//   for (const auto& folded : colossal::fold::fold(*world, "esmfold_v1", sequences, {.passes = 4}))
//     colossal::fold::write(folded, folded.name + ".cif");        // folded.positions is [16, 37, 3], in Angstrom
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/world.h"

namespace colossal::fold {

/// A chain to fold, or a complex.
struct Sequence {
  std::string name;
  std::vector<std::string> chains;  ///< letters A to Z of each chain; those that are none of the 20 types count as X
};

/// How chains are folded.
struct FoldOptions {
  /// How often the model runs on a chain (recycling). Default: as often as the run says, or else the model
  std::optional<int64_t> passes{};
  /// Stops after a pass that changes the distances of CA atoms by less on average, in Angstrom; 0 = off
  double tolerance = 0;
  uint64_t seed = 1;  ///< of what a pass draws, such as rows of alignments; models that read sequences draw nothing
  bool keeps_errors = false;  ///< true = the result has Folded::errors

  /// Errors ("fold"): passes below 1; a tolerance that is negative or not finite.
  void check() const;
};

/// A folded chain or complex of N residues, the residues of all chains in their order. Tensors are on the CPU.
struct Folded {
  std::string name;
  std::vector<std::string> chains;
  double plddt = 0;             ///< mean of the CA atoms, 0 to 100
  std::optional<double> ptm{};  ///< predicted TM score; nothing = the model has no head for it
  int64_t passes = 0;           ///< that ran
  double seconds = 0;
  int64_t pair_bytes = 0;  ///< of one pair representation, with the residues between chains of a complex (U)
  int64_t peak_bytes = 0;  ///< the most bytes of activations and buffers of a rank

  at::Tensor positions;   ///< [N, 37, 3] in Angstrom, fp32 or fp64; slots of atoms are those of AlphaFold
  at::Tensor atom_mask;   ///< [N, 37] of bool: atoms that the residue has; none for X
  at::Tensor atom_plddt;  ///< [N, 37], 0 to 100; models with a value for each residue repeat it
  at::Tensor errors{};    ///< [N, N] predicted aligned errors in Angstrom; undefined = not asked for, or no such head

  int64_t residues() const { return positions.defined() ? positions.size(0) : 0; }
};

/// Loads a model on every rank of `world` and folds the sequences one after another, each on all ranks, which are
/// stages of a pipeline. A model that reads alignments gets the sequence alone. `from` is what `colossal fold --from`
/// takes. Returns the same results on all ranks.
/// Communication: that of a pass; the recycled representations go from the last stage to the first.
/// Errors ("fold"): options that FoldOptions::check() refuses; a model that does not fold proteins; a complex, and a
///                  model of single chains; a sequence without a known residue. Errors of run::load_model().
std::vector<Folded> fold(comm::World& world, const std::string& from, const std::vector<Sequence>& sequences,
                         const FoldOptions& options = {});

/// Writes the structure as mmCIF or PDB, by the ending of the path. Residues are numbered from 1, chains are A, B and
/// so on, and B factors are pLDDT. Errors: those of protein::write_structure().
void write(const Folded& folded, const std::string& path);

}  // namespace colossal::fold
