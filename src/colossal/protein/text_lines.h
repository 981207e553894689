// Files of sequences as lines: plain or packed with gzip.
//
//   TextLines lines(read_text("x.fasta.gz", "fasta"));
//   while (lines.next()) use(lines.line(), lines.place());
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace colossal::protein {

/// The unpacked content of a file.
struct TextFile {
  std::string path;
  std::string bytes;
};

/// Returns a file, unpacked if its bytes begin as those of gzip. A mark of UTF-8 at its start is left out.
/// Errors ("file"): the file cannot be read. Errors (`component`): packed bytes are damaged or cut short, or the
/// content has more than 4 GiB.
TextFile read_text(const std::string& path, const char* component);

/// Goes through the lines of a file, which end with LF, CRLF or CR.
class TextLines {
 public:
  /// `file` must outlive the object.
  explicit TextLines(const TextFile& file) : file_(file) {}
  /// Goes to the next line. Returns false after the last one.
  bool next();
  std::string_view line() const { return line_; }  ///< without its end; valid as long as the file
  int64_t number() const { return number_; }       ///< of the line, from 1
  std::string place() const;                       ///< "path:number"

 private:
  const TextFile& file_;
  std::string_view line_;
  size_t position_ = 0;
  int64_t number_ = 0;
};

/// Returns "path:line".
std::string place_of(const std::string& path, int64_t line);

/// Returns a character for a message: itself in quotes, or "byte 7" if it is not printable ASCII.
std::string shown(char character);

/// Returns the first word of a line, up to a blank or tab.
std::string_view first_word(std::string_view line);

/// Returns a line without blanks and tabs at both ends.
std::string_view trimmed(std::string_view line);

}  // namespace colossal::protein
