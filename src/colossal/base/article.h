// The indefinite article before a name in a message.
#pragma once
#include <string>
#include <string_view>

namespace colossal {

/// Returns the name with its article: "a BLOOM", "an OPT". The first letter decides, so the article is wrong for names
/// that are spelled out (an MLP).
inline std::string with_article(const std::string& name) {
  const bool is_vowel = !name.empty() && std::string_view("AEIOUaeiou").find(name[0]) != std::string_view::npos;
  return (is_vowel ? "an " : "a ") + name;
}

}  // namespace colossal
