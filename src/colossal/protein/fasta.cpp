#include "colossal/protein/fasta.h"

#include <map>

#include "colossal/base/error.h"
#include "colossal/protein/text_lines.h"

namespace colossal::protein {
namespace {

/// Adds the letters of a line to the chains of a record.
class ChainReader {
 public:
  void add(std::string_view line, const std::string& place) {
    for (const char character : line) {
      if (character == ' ' || character == '\t') continue;
      if (character == ':') {
        end_chain(place);
        chains_.emplace_back();
        is_ended_ = false;
        continue;
      }
      if (is_ended_)
        throw Error("fasta", concat(place, ": `*` must be at the end of a chain: got ", shown(character),
                                    " after it; remove the `*`"));
      is_ended_ = character == '*';
      if (!is_ended_) chains_.back() += letter_of(character, place);
    }
  }

  /// Returns the chains after the last line. `place` is that of the record.
  std::vector<std::string> take(const std::string& place) {
    require(chains_.size() > 1 || !chains_[0].empty(), "fasta", place,
            ": a record must have at least one residue: got none; add its sequence or remove the record");
    end_chain(place);
    return std::move(chains_);
  }

 private:
  static char letter_of(char character, const std::string& place) {
    const char upper = character >= 'a' && character <= 'z' ? static_cast<char>(character - 'a' + 'A') : character;
    if (upper < 'A' || upper > 'Z')
      throw Error("fasta", concat(place, ": a residue must be a letter from A to Z: got ", shown(character),
                                  "; write X for an unknown residue, and `:` between chains"));
    return upper;
  }
  void end_chain(const std::string& place) const {
    require(!chains_.back().empty(), "fasta", place, ": chain ", chains_.size(),
            " of a record must have at least one residue: got none; remove the `:`");
  }

  std::vector<std::string> chains_ = std::vector<std::string>(1);
  bool is_ended_ = false;
};

/// Returns a record with its name, which no record before may have.
FastaRecord begin_record(const TextLines& lines, std::map<std::string, int64_t>& names) {
  FastaRecord record;
  record.header = trimmed(lines.line().substr(1));
  record.name = file_name_of(record.header);
  record.line = lines.number();
  require(!record.name.empty(), "fasta", lines.place(), ": a record must have a name after `>`: got none; add one");
  const auto [before, is_new] = names.emplace(record.name, record.line);
  require(is_new, "fasta", lines.place(), ": names of records must differ: got ", record.name, " as in line ",
          before->second,
          "; rename one (names end at a blank, and characters other than letters, digits, `.`, `-` "
          "and `_` count as `_`)");
  return record;
}

}  // namespace

std::vector<FastaRecord> read_fasta(const std::string& path) {
  const TextFile file = read_text(path, "fasta");
  TextLines lines(file);
  std::vector<FastaRecord> records;
  std::map<std::string, int64_t> names;
  ChainReader chains;
  const auto end_record = [&] {
    if (!records.empty()) records.back().chains = chains.take(place_of(path, records.back().line));
    chains = {};
  };
  while (lines.next()) {
    if (lines.line().starts_with('>')) {
      end_record();
      records.push_back(begin_record(lines, names));
    } else if (!trimmed(lines.line()).empty()) {
      require(!records.empty(), "fasta", lines.place(), ": a FASTA file must begin with `>` and a name: got ",
              shown(trimmed(lines.line())[0]), "; add a line such as `>name`");
      chains.add(lines.line(), lines.place());
    }
  }
  require(!records.empty(), "fasta", place_of(path, 1),
          ": a FASTA file must have at least one record: got none; add a line `>name` and a sequence");
  end_record();
  return records;
}

std::vector<std::string> chains_of(std::string_view letters, const std::string& place) {
  ChainReader chains;
  chains.add(letters, place);
  return chains.take(place);
}

std::string file_name_of(std::string_view header) {
  std::string name(first_word(header));
  for (char& c : name) {
    const bool is_kept =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
    if (!is_kept) c = '_';
  }
  return name;
}

}  // namespace colossal::protein
