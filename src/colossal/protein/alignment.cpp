#include "colossal/protein/alignment.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/protein/alignment_rows.h"
#include "colossal/protein/residues.h"

namespace colossal::protein {
namespace {

constexpr std::string_view kStockholmStart = "# STOCKHOLM";

bool is_residue_between(char c) { return c >= 'a' && c <= 'z'; }

/// Returns the letters and gaps of a row without the residues between columns.
std::string columns_of(const std::string& text) {
  std::string columns;
  std::copy_if(text.begin(), text.end(), std::back_inserter(columns), [](char c) { return !is_residue_between(c); });
  return columns;
}

/// Leaves NUL bytes out, with a notice. ColabFold's server separates its parts with them.
void drop_nuls(TextFile& file, std::vector<std::string>& notices) {
  const auto count = std::erase(file.bytes, '\0');
  if (count > 0)
    notices.push_back(concat("left ", count, " NUL byte", count == 1 ? "" : "s", " of ", file.path, " out"));
}

}  // namespace

void AlignmentBuilder::begin(const WrittenRow& query) {
  query_columns_ = columns_of(query.text);
  const bool has_residue = query_columns_.find_first_not_of('-') != std::string::npos;
  require(has_residue, "alignment", place_of(path_, query.line),
          ": the query, which is the first row, must have residues in upper case: got none; put the chain's sequence "
          "first");
  alignment_.place = place_of(path_, query.line);
}

void AlignmentBuilder::add(const WrittenRow& row) {
  const bool is_query = alignment_.rows.empty();
  if (is_query) begin(row);
  std::string columns;
  std::vector<int32_t> deletions;
  int32_t deleted = 0;
  size_t column = 0;
  for (const char c : row.text) {
    if (is_residue_between(c)) {
      ++deleted;
      continue;
    }
    const bool is_kept = column < query_columns_.size() && query_columns_[column] != '-';
    ++column;
    if (!is_kept) {
      deleted += c == '-' ? 0 : 1;
      continue;
    }
    columns += c;
    deletions.push_back(deleted);
    deleted = 0;
  }
  if (column != query_columns_.size())
    throw Error("alignment",
                concat(place_of(path_, row.line), ": row `", first_word(row.description), "` must have ",
                       query_columns_.size(), " columns, as the query: got ", column, "; align it again or remove it"));
  add_columns(std::move(columns), deletions, row.description);
}

void AlignmentBuilder::add_columns(std::string row, const std::vector<int32_t>& deletions, std::string description) {
  const size_t hash = std::hash<std::string>()(row);
  const auto [first, last] = known_.equal_range(hash);
  if (std::any_of(first, last, [&](const auto& known) { return alignment_.rows[known.second] == row; })) {
    ++alignment_.equal_rows;
    return;
  }
  known_.emplace(hash, alignment_.rows.size());
  alignment_.rows.push_back(std::move(row));
  alignment_.deletions.insert(alignment_.deletions.end(), deletions.begin(), deletions.end());
  alignment_.descriptions.push_back(std::move(description));
}

Alignment AlignmentBuilder::take() {
  require(!alignment_.rows.empty(), "alignment", place_of(path_, 1),
          ": an alignment must have at least one row: got none; put the chain's sequence first");
  return std::move(alignment_);
}

bool is_alignment_name(const std::string& path) {
  const std::string plain = has_ending(path, ".gz") ? path.substr(0, path.size() - 3) : path;
  return has_ending(plain, ".a3m") || has_ending(plain, ".sto");
}

Alignment read_alignment(const std::string& path, const AlignmentOptions& options) {
  TextFile file = read_text(path, "alignment");
  std::vector<std::string> notices;
  drop_nuls(file, notices);
  const bool is_stockholm = file.bytes.starts_with(kStockholmStart);
  require(is_stockholm || !(has_ending(path, ".sto") || has_ending(path, ".sto.gz")), "alignment", place_of(path, 1),
          ": a Stockholm file must begin with `# STOCKHOLM 1.0`: got other text; name an A3M file x.a3m");
  Alignment alignment = is_stockholm ? read_stockholm(file) : read_a3m(file, options);
  alignment.notices.insert(alignment.notices.begin(), notices.begin(), notices.end());
  return alignment;
}

void require_query(const Alignment& alignment, std::string_view sequence, const std::string& place) {
  const std::string& query = alignment.rows.at(0);
  const size_t both = std::min(query.size(), sequence.size());
  size_t same = 0;
  while (same < both && type_of_letter(query[same]) == type_of_letter(sequence[same])) ++same;
  if (same == query.size() && same == sequence.size()) return;
  const std::string difference = same < both ? concat("residue ", same + 1, " is ", query[same],
                                                      " in the alignment and ", sequence[same], " in the sequence")
                                             : concat(query.size(), " residues in the alignment and ", sequence.size(),
                                                      " in the sequence; the first ", same, " are equal");
  throw Error("alignment", concat(alignment.place, ": the query of an alignment must be the sequence of ", place,
                                  ": got ", difference, "; give the alignment of this chain"));
}

Alignment single_row(std::string_view sequence, std::string_view name) {
  AlignmentBuilder builder{std::string(name)};
  builder.add({std::string(sequence), std::string(name), 1});
  return builder.take();
}

Alignment join_alignments(const std::vector<Alignment>& alignments) {
  require(!alignments.empty(), "alignment", "at least one alignment must be given to join: got none");
  AlignmentBuilder builder{""};
  for (const Alignment& part : alignments) {
    require_query(part, alignments[0].rows.at(0), alignments[0].place);
    const auto columns = static_cast<size_t>(part.columns());
    for (size_t row = 0; row < part.rows.size(); ++row) {
      const auto begin = part.deletions.begin() + static_cast<int64_t>(row * columns);
      builder.add_columns(part.rows[row], {begin, begin + static_cast<int64_t>(columns)}, part.descriptions[row]);
    }
    builder.alignment().equal_rows += part.equal_rows;
    builder.alignment().notices.insert(builder.alignment().notices.end(), part.notices.begin(), part.notices.end());
  }
  Alignment joined = builder.take();
  joined.place = alignments[0].place;
  joined.chain_lengths = alignments[0].chain_lengths;
  joined.chain_copies = alignments[0].chain_copies;
  return joined;
}

double deletion_value(double deletions) { return 2 / std::numbers::pi * std::atan(deletions / 3); }

}  // namespace colossal::protein
