// Alignments of a chain with related sequences (MSA), in A3M and Stockholm files.
//
//   const protein::Alignment found = protein::read_alignment("x.a3m");
//   protein::require_query(found, sequence, "x.fasta:1");
//   const protein::Alignment all = protein::join_alignments({found, protein::read_alignment("x.sto.gz")});
//   const int type = protein::alignment_type_of_letter(all.rows[2][5]);
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::protein {

/// Rows of the residues that stand at those of a query. The columns are the residues of the query.
struct Alignment {
  std::vector<std::string> rows;          ///< [row] letters A to Z, or `-` for a gap, one per column; row 0 = the query
  std::vector<int32_t> deletions;         ///< [row, column] residues of the row left out before this column
  std::vector<std::string> descriptions;  ///< [row] the name and what follows it in the file
  std::string place;                      ///< file and line of the query
  int64_t equal_rows = 0;                 ///< rows left out because an earlier row has the same letters and gaps
  std::vector<std::string> notices;       ///< what was read otherwise than written, for the user
  /// Lengths and numbers of copies of the chains that a `#` line of ColabFold lists; empty = there is no such line.
  std::vector<int64_t> chain_lengths, chain_copies;

  int64_t columns() const { return rows.empty() ? 0 : static_cast<int64_t>(rows[0].size()); }
  int32_t deletion(int64_t row, int64_t column) const {
    return deletions[static_cast<size_t>(row * columns() + column)];
  }
};

/// Returns true if the name of a file ends as alignments do: .a3m or .sto, perhaps with .gz.
bool is_alignment_name(const std::string& path);

/// How an alignment is read.
struct AlignmentOptions {
  bool is_monomer = true;  ///< refuses a `#` line of ColabFold that lists several chains
};

/// Reads a file, plain or packed with gzip: Stockholm if it begins with `# STOCKHOLM`, else A3M. The first row is the
/// query. Columns where the query has a gap are left out, and residues of a row in them count as deletions before the
/// next column. Residues after the last column count nowhere. Rows with the letters and gaps of an earlier row are left
/// out. NUL bytes are left out, with a notice.
///
/// A3M: lower case is a residue left out before the next column, `.` nothing, and `*` at the end of a row nothing. Rows
/// may be wrapped. Lines that begin with `#` are comments. Stockholm: blocks may be interleaved, `.`, `-`, `_` and `~`
/// are gaps, and the case of letters has no meaning.
/// Errors ("alignment"), with file and line: a character that is no residue or gap, a row of another length than the
/// query, a file without a row or with a query of gaps alone, text before the first row, a Stockholm file without its
/// end, several chains with `is_monomer`.
Alignment read_alignment(const std::string& path, const AlignmentOptions& options = {});

/// Checks that the query is `sequence`; residues that are none of the 20 types count as equal. `place` names where the
/// sequence is from.
/// Errors ("alignment"): another length or residue; the message has file, line and the first difference.
void require_query(const Alignment& alignment, std::string_view sequence, const std::string& place);

/// Returns an alignment of `sequence` alone, which features need if a chain has no file.
Alignment single_row(std::string_view sequence, std::string_view name);

/// Returns the rows of several alignments of one query, in their order, equal rows once. Notices are joined. Errors
/// ("alignment"): no alignment, or another query than that of the first.
Alignment join_alignments(const std::vector<Alignment>& alignments);

/// Returns the feature of a number of deletions, 2 / pi atan(d / 3).
double deletion_value(double deletions);

}  // namespace colossal::protein
