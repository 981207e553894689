// Comparisons of structures as users see them.
//
//   put_line(json_line(json_of(protein::compare(of_structure, of_reference))));
#pragma once
#include <string>

#include "colossal/base/json.h"
#include "colossal/protein/comparison.h"

namespace colossal::cli {

/// Returns {"residues": ..., "rmsd": ..., "lddt_ca": ..., "tm": ..., "gdt_ts": ...}.
nlohmann::ordered_json json_of(const protein::Comparison& found);

/// Returns "RMSD 1.234 A over 83 residues, lDDT-CA 0.9120, TM-score 0.8761, GDT-TS 0.8012".
std::string text_of_comparison(const protein::Comparison& found);

}  // namespace colossal::cli
