#include "colossal/data/streams/fasta_records.h"

#include <algorithm>
#include <array>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/protein/fasta.h"
#include "colossal/protein/text_lines.h"

namespace colossal::data {
namespace {

constexpr std::string_view kFastaMark = "\xef\xbb\xbf";  // byte order mark
constexpr std::array<std::string_view, 9> kFasta = {".fasta",  ".fasta.gz", ".fasta.zst", ".fa",     ".fa.gz",
                                                    ".fa.zst", ".faa",      ".faa.gz",    ".faa.zst"};

}  // namespace

bool is_fasta(std::string_view path) {
  return std::any_of(kFasta.begin(), kFasta.end(), [&](auto ending) { return has_ending(path, ending); });
}

FastaRecords::FastaRecords(const std::string& path, int64_t longest, LinePosition start)
    : path_(path), longest_(longest), lines_(path, longest, start), next_(start) {}

bool FastaRecords::find_header() {
  while (lines_.next(read_)) {
    if (lines_.position().lines == 1 && read_.starts_with(kFastaMark)) read_.erase(0, kFastaMark.size());
    if (read_.starts_with('>')) return true;
    require(is_blank(read_), "data", protein::place_of(path_, lines_.position().lines),
            ": a FASTA file must begin with `>` and a name: got ", protein::shown(read_.front()),
            "; add a line such as `>name`");
    next_ = lines_.position();
  }
  return false;
}

/// Returns the lines up to the next header. Characters beyond the longest record are not kept.
std::string FastaRecords::read_letters() {
  std::string letters;
  has_header_ = false;
  is_cut_ = false;
  for (next_ = lines_.position(); lines_.next(read_); next_ = lines_.position()) {
    has_header_ = read_.starts_with('>');
    if (has_header_) break;
    if (!read_.empty() && read_.back() == '\r') read_.pop_back();
    is_cut_ = is_cut_ || lines_.is_cut() || static_cast<int64_t>(letters.size() + read_.size()) > longest_;
    if (!is_cut_) letters += read_;
  }
  return letters;
}

bool FastaRecords::next(std::string& line) {
  line.clear();
  fault_.clear();
  if (!has_header_ && !find_header()) return false;
  const std::string place = protein::place_of(path_, next_.lines + 1);
  const std::string letters = read_letters();
  if (is_cut_) return true;
  try {
    const std::vector<std::string> chains = protein::chains_of(letters, place);
    require(chains.size() == 1, "data", place, ": a record to learn must be one chain: got ", chains.size(),
            "; write each chain as a record of its own");
    line = nlohmann::json{{"text", chains.front()}}.dump();
  } catch (const Error& error) {
    fault_ = error.message();
  }
  return true;
}

}  // namespace colossal::data
