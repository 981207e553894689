// Records of comma-separated values.
//
//   data::CsvReader reader("file_name,text\na.png,\"a cat, asleep\"\n", "metadata.csv");
//   for (std::vector<std::string> fields; reader.next(fields);) std::cout << fields.size() << "\n";
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::data {

/// A reader of CSV (RFC 4180). Commas separate fields, and LF or CRLF ends a record. A field in double quotes may hold
/// commas, ends of lines, and quotes, which are doubled. The last record may have no end, and blank lines are no
/// records. A byte order mark at the start is ignored.
/// Thread safety: one thread calls the members.
class CsvReader {
 public:
  /// `text` must outlive the reader. `name` is the file's name in messages.
  CsvReader(std::string_view text, std::string name);
  /// Reads the next record. Returns false if there is none.
  /// Errors ("data"), beginning with `name:line`: a quote inside a field without quotes, text after the quote that ends
  /// a field, or no such quote. The next call continues with the line after the error.
  bool next(std::vector<std::string>& fields);
  /// Returns the line, from 1, in which the last record began.
  int64_t line() const { return line_; }

 private:
  std::string quoted_field();
  void refuse_record(const char* why);
  bool takes_end_of_line();
  std::string_view rest_;
  std::string name_;
  int64_t line_ = 0, next_line_ = 1;
};

}  // namespace colossal::data
