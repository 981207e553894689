// What is written of a folded chain.
//
//   protein::write_structure(structure_of(folded), "one.cif");
//   write_file("one.json", errors_text(folded));
//   std::puts(summary_of(folded).dump().c_str());
#pragma once
#include <string>

#include "colossal/base/json.h"
#include "colossal/fold/fold.h"
#include "colossal/protein/structure.h"

namespace colossal::fold {

/// Returns the chains A, B and so on; B factors are pLDDT.
protein::Structure structure_of(const Folded& folded);

/// Returns a structure of the residues of chains with all atoms at the origin, to check what a format holds before a
/// model folds them.
protein::Structure unplaced_structure(const Sequence& sequence);

/// Returns `[{"predicted_aligned_error": [[...]], "max_predicted_aligned_error": 31.75}]`, with errors in hundredths of
/// an Angstrom, as other programs read it. Errors ("fold"): Folded::errors is undefined.
std::string errors_text(const Folded& folded);

/// Returns the object that `colossal fold --json` prints of a chain.
nlohmann::ordered_json summary_of(const Folded& folded);

/// Writes the tensors positions [N, 37, 3], atom_mask [N, 37] and atom_plddt [N, 37], and if it is defined errors
/// [N, N], as safetensors.
void write_tensors(const Folded& folded, const std::string& path);

}  // namespace colossal::fold
