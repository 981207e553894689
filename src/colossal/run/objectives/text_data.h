// The texts of a run: plain text, or records that are read as a stream. Objectives of tokens open them here.
//
//   OpenedData data = open_tokens(request, {});                  // labels are the tokens that follow
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/corpus.h"
#include "colossal/data/masked_samples.h"
#include "colossal/data/record_source.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// data.faults as the data layer takes it.
data::Faults faults_of(const DataConfig& config);

/// Returns true if data.path or data.sources are read as a stream of records.
bool is_streamed(const DataConfig& config);

/// The text of data.path, which is not streamed, with a part held out.
struct PlainText {
  data::Corpus training, held_out;
  std::vector<std::string> notices;  ///< files of a folder that were not read
};

/// Errors ("data"): a path without text; "builtin" without the sources of the library.
PlainText open_plain_text(const DataRequest& request);

/// Samples of data.sequence tokens, of plain text or of a stream. `masking`: their labels are tokens that it hides;
/// none: the tokens that follow. Errors ("data"): those of reading; a held-out part without a whole sample.
OpenedData open_tokens(const DataRequest& request, const std::optional<data::Masking>& masking);

}  // namespace colossal::run
