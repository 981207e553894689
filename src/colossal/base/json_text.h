// Tells JSON from other texts without making values of it.
#pragma once
#include <string_view>

namespace colossal {

/// Returns true if the text is one JSON value, however deeply it is nested. If `is_whole` is false, `text` is the start
/// of a longer one, and a value that the end cuts off counts.
bool is_json(std::string_view text, bool is_whole);

}  // namespace colossal
