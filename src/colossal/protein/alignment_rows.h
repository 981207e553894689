// What the readers of A3M and Stockholm share: rows as written, and the columns of the query.
#pragma once
#include <string>
#include <unordered_map>

#include "colossal/protein/alignment.h"
#include "colossal/protein/text_lines.h"

namespace colossal::protein {

/// A row as an aligned text: letters A to Z and `-` are columns, letters in lower case are residues between them.
struct WrittenRow {
  std::string text;
  std::string description;
  int64_t line = 0;  ///< where the row begins
};

/// Adds rows to an alignment. The first is the query and defines the columns.
class AlignmentBuilder {
 public:
  /// `path` begins messages.
  explicit AlignmentBuilder(std::string path) : path_(std::move(path)) {}
  Alignment& alignment() { return alignment_; }
  /// Errors ("alignment"): the row has another number of columns than the query, or the query has no residue.
  void add(const WrittenRow& row);
  /// Adds a row in the columns of the query, unless an earlier row is equal. `deletions` has a number per column.
  void add_columns(std::string row, const std::vector<int32_t>& deletions, std::string description);
  /// Returns the alignment after the last row. Errors ("alignment"): there is no row.
  Alignment take();

 private:
  void begin(const WrittenRow& query);
  std::string path_;
  Alignment alignment_;
  std::string query_columns_;                      // of the query, gaps included
  std::unordered_multimap<size_t, size_t> known_;  // rows by the hash of their letters
};

/// Reads the rows of an A3M file.
Alignment read_a3m(const TextFile& file, const AlignmentOptions& options);

/// Reads the rows of a Stockholm file.
Alignment read_stockholm(const TextFile& file);

}  // namespace colossal::protein
