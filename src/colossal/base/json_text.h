// Decides whether a text is JSON, without building a value.
#pragma once
#include <string_view>

namespace colossal {

/// Returns true if the text is one JSON value, of any depth. If `is_whole` is false, `text` is the start of a longer
/// text, and a value that is cut off by the end of `text` counts as JSON.
bool is_json(std::string_view text, bool is_whole);

}  // namespace colossal
