// A3M: `>` lines with rows whose residues in lower case stand between the columns of the query.
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/protein/alignment_rows.h"

namespace colossal::protein {
namespace {

/// Returns the numbers of "12,34", or nothing if the text is another.
std::optional<std::vector<int64_t>> numbers_of(std::string_view text) {
  std::vector<int64_t> numbers;
  for (;;) {
    const size_t comma = text.find(',');
    const std::optional<int64_t> number = parse_id(text.substr(0, comma));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    if (comma == std::string_view::npos) return numbers;
    text.remove_prefix(comma + 1);
  }
}

/// Reads the chains of a line such as "#59,60\t1,2": lengths, then copies. Other comments have no effect.
void read_comment(const TextLines& lines, const AlignmentOptions& options, Alignment& alignment) {
  const std::string_view text = lines.line().substr(1), first = first_word(text);
  const size_t after = text.find(first) + first.size();
  const auto lengths = numbers_of(first), copies = numbers_of(trimmed(text.substr(std::min(after, text.size()))));
  if (!lengths || !copies || lengths->size() != copies->size()) return;
  const bool has_several = lengths->size() > 1 || copies->front() > 1;
  require(!has_several || !options.is_monomer, "alignment", lines.place(),
          ": the alignment of a monomer must list one chain: got `", trimmed(lines.line()),
          "`; fold a complex with alphafold2-multimer-v3, or give the alignment of this chain alone");
  alignment.chain_lengths = *lengths;
  alignment.chain_copies = *copies;
}

/// Adds the letters of a line to a row. `*` may end it, as a stop codon does.
void add_letters(const TextLines& lines, std::string& text, bool& is_ended) {
  for (const char c : lines.line()) {
    if (c == ' ' || c == '\t') continue;
    const bool is_letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-';
    if (is_ended || (!is_letter && c != '.' && c != '*'))
      throw Error("alignment",
                  concat(lines.place(), ": a row must have letters, `-` and `.`, and `*` at its end alone: got ",
                         shown(c), "; remove it or the row"));
    is_ended = c == '*';
    if (is_letter) text += c;
  }
}

}  // namespace

Alignment read_a3m(const TextFile& file, const AlignmentOptions& options) {
  AlignmentBuilder builder(file.path);
  TextLines lines(file);
  std::optional<WrittenRow> row;
  bool is_ended = false;
  while (lines.next()) {
    const std::string_view line = lines.line();
    if (line.starts_with('>')) {
      if (row) builder.add(*row);
      row = WrittenRow{{}, std::string(trimmed(line.substr(1))), lines.number()};
      is_ended = false;
    } else if (line.starts_with('#')) {
      read_comment(lines, options, builder.alignment());
    } else if (!trimmed(line).empty()) {
      if (!row)
        throw Error("alignment",
                    concat(lines.place(), ": an A3M file must begin with `>` and the name of the query: got ",
                           shown(trimmed(line)[0]), "; add a line such as `>query`"));
      add_letters(lines, row->text, is_ended);
    }
  }
  if (row) builder.add(*row);
  return builder.take();
}

}  // namespace colossal::protein
