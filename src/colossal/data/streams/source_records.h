// Functions that all streams of records share: they describe the sources, check their first records, and read those
// that are held out.
//
//   nlohmann::json traits = stream_traits(sources, *tokenizer, options.records);
//   for_first_lines(sources, options.records, [&](const Record& record) { check(record); return false; });
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/data/streams/record_mix.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// Returns the traits of a stream of these sources: a JSON object of the sources with the sizes and checksums of their
/// files, of the tokenizer (a checksum of its vocabulary and of the tokens of a fixed text), and of the options that
/// change which records are read.
nlohmann::json stream_traits(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                             const RecordOptions& options);

/// Calls use(record) for the first lines of each source's first file that are not blank, until it returns false. A line
/// that is too long ends the source. Errors ("data"): the file cannot be read.
void for_first_lines(const std::vector<StreamSource>& sources, const RecordOptions& options,
                     const std::function<bool(const Record&)>& use);

/// A reader of held-out records.
struct HeldOutReader {
  /// Called before the records of each source. `sum` is the sum of the weights of all sources.
  std::function<void(const StreamSource& source, double sum)> begin;
  std::function<bool()> wants_more;
  std::function<void(const Record& record)> read;  ///< throws an Error if the record is damaged
};

/// Reads the held-out records of the sources, in the order of their names, each until its end or until the reader wants
/// no more. `notices` gets a line for each skipped record, limited as in SkippedRecords.
/// Errors: the same as RecordSource; with OnError::Refuse those of the reader.
void read_held_out_records(const std::vector<StreamSource>& sources, RecordOptions options, const HeldOutReader& reader,
                           std::vector<std::string>& notices);

}  // namespace colossal::data
