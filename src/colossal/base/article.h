// The indefinite article of a name in a message.
#pragma once
#include <string>
#include <string_view>

namespace colossal {

/// "a BLOOM", "an OPT": by the first letter, so not of names that are spelled out (an MLP).
inline std::string with_article(const std::string& name) {
  const bool is_vowel = !name.empty() && std::string_view("AEIOUaeiou").find(name[0]) != std::string_view::npos;
  return (is_vowel ? "an " : "a ") + name;
}

}  // namespace colossal
