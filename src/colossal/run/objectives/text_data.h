// Opens the texts of a run: plain text, or records that are read as a stream. The objectives of tokens use it.
//
//   OpenedData data = open_tokens(request, {});                  // labels are the next tokens
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/corpus.h"
#include "colossal/data/masked_samples.h"
#include "colossal/data/record_source.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// Returns data.faults in the type of the data layer.
data::Faults faults_of(const DataConfig& config);

/// Returns true if data.path or data.sources are read as a stream of records.
bool is_streamed(const DataConfig& config);

/// The text of data.path, which is not streamed, with a held-out part.
struct PlainText {
  data::Corpus training, held_out;
  std::vector<std::string> notices;  ///< files of a folder that were not read
};

/// Opens plain text. Errors ("data"): a path without text; "builtin" without the sources of the library.
PlainText open_plain_text(const DataRequest& request);

/// Opens samples of data.sequence tokens, from plain text or a stream. `masking`: labels are the tokens that it hides;
/// none = labels are the next tokens. Errors ("data"): errors of reading; a held-out part without a whole sample.
OpenedData open_tokens(const DataRequest& request, const std::optional<data::Masking>& masking);

}  // namespace colossal::run
