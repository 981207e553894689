// The records of a FASTA file as lines of JSON, so that a model learns each sequence as a text.
#pragma once
#include <string>
#include <string_view>

#include "colossal/data/streams/record_lines.h"

namespace colossal::data {

/// Returns true if the name of a file ends as FASTA does, in upper or lower case: .fasta, .fa or .faa, also packed
/// (.gz, .zst).
bool is_fasta(std::string_view path);

/// A reader of the records of a FASTA file. Each is the JSON object {"text": "MKTAYI..."} of its letters, in upper case
/// and without blanks, as protein::read_fasta() reads them. A position is that of a header (`>`). A record counts as
/// many lines as it has. Names are not read, so two records may have the same.
/// Memory: one record.
/// Thread safety: one thread calls the members.
class FastaRecords final : public RecordLines {
 public:
  /// Opens a file at `start`, the position of a header. A record of more than `longest` bytes is cut.
  /// Errors: the same as LineReader.
  FastaRecords(const std::string& path, int64_t longest, LinePosition start);
  /// Reads the next record into `line`. A record with a character that is no residue, without residues or of several
  /// chains has a fault(). Errors ("data"): text before the first header.
  bool next(std::string& line) override;
  bool is_cut() const override { return is_cut_; }
  std::string fault() const override { return fault_; }
  LinePosition position() const override { return next_; }

 private:
  bool find_header();
  std::string read_letters();

  std::string path_;
  int64_t longest_;
  LineReader lines_;
  LinePosition next_;        // of the next header
  bool has_header_ = false;  // true = lines_ is behind the next header
  bool is_cut_ = false;
  std::string read_, fault_;
};

}  // namespace colossal::data
