// Rows of `colossal bench folding`: a block of a folding model whose representations ranks cut.
//
//   for (const FoldingRow& row : folding_rows(2, {.alignment = 128, .residues = 256})) print(row.sent, row.formula);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::cli {

/// The sizes of the representations; features are those of the published models.
struct FoldingWork {
  int64_t alignment = 128;  ///< rows of the clustered alignment
  int64_t residues = 256;
};

/// Elements that all ranks together send in one phase of a block, a row of the table.
struct FoldingRow {
  int64_t ranks = 0;
  std::string what;   ///< "alphafold2" or "esmfold"
  std::string phase;  ///< "forward" or "backward"
  int64_t sent = 0, formula = 0;
};

/// Runs a block of AlphaFold 2 and one of ESMFold on tensors without data, rank by rank, and counts what each would
/// send. Returns a row for each phase. The formulas are those of docs/explanation/sequence-parallel.md.
/// Errors ("parallel"): fewer residues than ranks. Time: about 0.1 s a rank.
std::vector<FoldingRow> folding_rows(int64_t ranks, const FoldingWork& work);

}  // namespace colossal::cli
