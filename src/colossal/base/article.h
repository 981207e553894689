// The indefinite article before a name in a message.
#pragma once
#include <string>
#include <string_view>

namespace colossal {

/// Returns the name with its article: "a BLOOM", "an OPT", "a UNet". The first letter decides, so the article is wrong
/// for names that are spelled out (an MLP).
inline std::string with_article(const std::string& name) {
  const bool is_vowel = !name.empty() && std::string_view("AEIOUaeiou").find(name[0]) != std::string_view::npos;
  const bool is_said_you = name.starts_with("UNet") || name.starts_with("unet");
  return (is_vowel && !is_said_you ? "an " : "a ") + name;
}

}  // namespace colossal
