// Patterns of names with `*` for any characters.
//
//   matches_wildcards("*.attn.bias", "h.0.attn.bias")   // true
#pragma once
#include <string_view>

namespace colossal {

/// Returns true if `text` matches `pattern`, in which each `*` stands for any characters, or none. All other characters
/// stand for themselves. Cost: O(|pattern| |text|).
bool matches_wildcards(std::string_view pattern, std::string_view text);

}  // namespace colossal
