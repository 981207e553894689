// The output of `colossal plan CONFIG --search`.
#pragma once
#include <string>

#include "colossal/predict/search.h"

namespace colossal::cli {

/// Returns the layouts as a table with a line for each, and the TOML of the fastest.
std::string to_text(const predict::SearchResult& found);
/// Returns the prediction of the fastest layout as JSON, with the member `best`: a list of objects with step_seconds,
/// peak_bytes, why and table.
std::string to_json(const predict::SearchResult& found);

}  // namespace colossal::cli
