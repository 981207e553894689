// Opens the texts of a run: plain text, or records that are read as a stream. The objectives of tokens (tokens.h) call
// open_tokens().
//
//   OpenedData data = open_tokens(request, {}, {});                  // labels are the next tokens
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/streams/record_mix.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/data/texts/corpus.h"
#include "colossal/data/texts/samples.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

/// Converts data.on_error, the action for data that cannot be read, to the type of the data layer.
data::OnError on_error_of(const DataConfig& config);

/// What keys need that are for records, for messages.
inline constexpr char kRecords[] = "JSON lines or Parquet in data.path";

/// Returns true if data.path holds records: JSON lines, Parquet or FASTA.
bool reads_records(const DataConfig& config);

/// Refuses keys that others leave without effect.
void check_stream_keys(const StreamKeys& keys);

/// Opens the sources that data.sources names, or data.path. Errors ("data"): weights of another number; a source that
/// is not `name=path`; both keys; those of data::StreamSource::open().
std::vector<data::StreamSource> sources_of(const DataConfig& config, const StreamKeys& keys);

/// The text of data.path, which is not streamed, split into a training part and a held-out part.
struct PlainText {
  data::Corpus training, held_out;
  std::vector<std::string> notices;  ///< lines for the log about files of a folder that were not read
  bool is_builtin;                   ///< true: it is the text of data.path = "builtin"
};

/// Opens data.path as plain text. Errors ("data"): a path without text; data.path = "builtin" if its text is missing.
PlainText open_plain_text(const DataRequest& request);

/// Opens samples of data.sequence tokens, from plain text or from a stream of records. With `masking`, labels are the
/// tokens that it hides; without it, labels are the next tokens. Errors ("data"): errors of reading; a held-out part
/// without a whole sample.
OpenedData open_tokens(const DataRequest& request, const StreamKeys& keys, const std::optional<data::Masking>& masking);

}  // namespace colossal::run
