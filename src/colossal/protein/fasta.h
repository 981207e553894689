// Sequences in FASTA files.
//
//   for (const protein::FastaRecord& record : protein::read_fasta("many.fasta.gz"))
//     fold(record.name, record.chains);
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::protein {

/// One record: a chain, or the chains of a complex.
struct FastaRecord {
  std::string name;                 ///< NAME of files: file_name_of(header)
  std::string header;               ///< the line after `>`
  std::vector<std::string> chains;  ///< letters A to Z, at least one per chain; `:` separates chains in the file
  int64_t line = 0;                 ///< number of the header's line
};

/// Reads a file, plain or packed with gzip. Lines may be wrapped and end with CRLF, letters may be in lower case,
/// blanks between letters are left out, and a chain may end with `*`. All letters A to Z are residues; those that are
/// none of the 20 types are unknown residues (type_of_letter()).
/// Errors ("fasta"), with file and line: a character that is no residue, text before the first `>`, an empty file,
/// record or chain, a record without a name, two records of one name.
std::vector<FastaRecord> read_fasta(const std::string& path);

/// Returns the chains of a sequence as read_fasta() does, such as that of a flag. `place` begins the messages.
/// Errors ("fasta"): a character that is no residue, an empty sequence or chain.
std::vector<std::string> chains_of(std::string_view letters, const std::string& place);

/// Returns the first word of a header, with `_` in place of all characters but ASCII letters, digits, `.`, `-` and `_`.
std::string file_name_of(std::string_view header);

}  // namespace colossal::protein
