// The records of a task: JSON lines, rows of Parquet or rows of CSV, as JSON objects with the number of their line.
//
//   for (const evaluate::Record& record : evaluate::read_records("test.jsonl", {}, 0)) use(record.members["question"]);
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::evaluate {

struct Record {
  nlohmann::ordered_json members;  ///< an object; values of CSV are texts
  int64_t line;                    ///< number of its first line in the file, from 1; of Parquet its row
};

/// One row of a CSV file.
struct CsvRow {
  std::vector<std::string> fields;
  int64_t line;  ///< number of its first line, from 1
};

/// Reads CSV as RFC 4180 writes it. Commas separate fields and LF or CRLF ends rows. A field in double quotes may hold
/// both, and "" in it stands for a quote. Blank lines outside of quotes are no rows. `path` appears in messages.
/// Errors ("evaluate"), with path and line: text that is not UTF-8; a quote that is not closed; text after a closing
/// quote.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& path);

/// Reads the first `limit` records of a file; 0 = all. A file whose name ends in .csv is CSV, one in .parquet Parquet,
/// and any other JSON lines, which may be packed (.gz, .zst). `columns` are the names of the columns of a CSV file
/// without a header; empty = its first row has the names. A first row that begins and ends with the first and last of
/// `columns` is a header all the same, and is skipped.
/// Errors ("evaluate", "data", "file"), with path and line: a file that cannot be read, a broken line, a row of CSV
/// with another number of fields than columns, a file without records.
std::vector<Record> read_records(const std::string& path, const std::vector<std::string>& columns, int64_t limit);

}  // namespace colossal::evaluate
