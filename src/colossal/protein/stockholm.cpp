// Stockholm: blocks of lines "name row", with marks `#=` and the end `//`.
#include <unordered_map>

#include "colossal/base/error.h"
#include "colossal/protein/alignment_rows.h"

namespace colossal::protein {
namespace {

/// Returns what follows the first word.
std::string_view after_first_word(std::string_view line) {
  line = trimmed(line);
  return trimmed(line.substr(first_word(line).size()));
}

/// The rows of a file, each joined from its blocks.
class StockholmRows {
 public:
  void add(const TextLines& lines) {
    const std::string name(first_word(lines.line()));
    const std::string_view letters = after_first_word(lines.line());
    if (letters.empty())
      throw Error("alignment", concat(lines.place(), ": a line of a row must have its name and its letters: got `",
                                      name, "`; restore the letters or remove the line"));
    const auto [at, is_new] = index_.emplace(name, rows_.size());
    if (is_new) rows_.push_back({{}, name, lines.number()});
    std::string& text = rows_[at->second].text;
    for (const char c : letters) text += column_of(c, lines);
  }

  /// Keeps the description of a line "#=GS name DE text".
  void add_description(std::string_view line) {
    const std::string_view rest = after_first_word(line), name = first_word(rest), kind = after_first_word(rest);
    if (first_word(kind) == "DE") texts_[std::string(name)] = after_first_word(kind);
  }

  std::vector<WrittenRow> take() {
    for (WrittenRow& row : rows_)
      if (const auto text = texts_.find(row.description); text != texts_.end()) row.description += " " + text->second;
    return std::move(rows_);
  }

 private:
  static char column_of(char c, const TextLines& lines) {
    if (c == '-' || c == '.' || c == '_' || c == '~') return '-';
    const char upper = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    if (upper < 'A' || upper > 'Z')
      throw Error("alignment", concat(lines.place(), ": a row must have letters and gaps (`-`, `.`, `_`, `~`): got ",
                                      shown(c), "; remove it or the row"));
    return upper;
  }

  std::vector<WrittenRow> rows_;
  std::unordered_map<std::string, size_t> index_;
  std::unordered_map<std::string, std::string> texts_;
};

}  // namespace

Alignment read_stockholm(const TextFile& file) {
  TextLines lines(file);
  StockholmRows rows;
  bool is_ended = false;
  while (lines.next()) {
    const std::string_view line = trimmed(lines.line());
    if (line.empty()) continue;
    if (is_ended)
      throw Error("alignment", concat(lines.place(),
                                      ": a Stockholm file must have one alignment: got text after its end, "
                                      "`//`; write each alignment into a file of its own"));
    if (line == "//") {
      is_ended = true;
    } else if (line.starts_with("#=GS")) {
      rows.add_description(line);
    } else if (!line.starts_with('#')) {
      rows.add(lines);
    }
  }
  if (!is_ended)
    throw Error("alignment", concat(place_of(file.path, lines.number()),
                                    ": a Stockholm file must end with `//`: got its end before; fetch it again"));
  AlignmentBuilder builder(file.path);
  for (const WrittenRow& row : rows.take()) builder.add(row);
  return builder.take();
}

}  // namespace colossal::protein
